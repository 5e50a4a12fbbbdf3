// OpenAI's client for Node against a router: node openai_client.mjs MODULES BASE_URL MODEL TOKENS PROMPT
import { createRequire } from "node:module";
import path from "node:path";

const [modules, baseURL, model, tokens, prompt] = process.argv.slice(2);
const OpenAI = createRequire(path.join(modules, "x.js"))("openai").default;
const client = new OpenAI({ apiKey: "any", baseURL, maxRetries: 0, timeout: 15000 });
const shown = (text) => text.replaceAll("\n", "\\n");

const whole = await client.completions.create({ model, prompt, max_tokens: Number(tokens) });
console.log("text " + shown(whole.choices[0].text));

let text = "";
for await (const chunk of await client.completions.create({ model, prompt, max_tokens: Number(tokens), stream: true })) {
  text += chunk.choices[0]?.text ?? "";
}
console.log("stream " + shown(text));

let used = 0;
const messages = [{ role: "user", content: prompt }];
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: Number(tokens), ...options })) {
  used = chunk.usage?.completion_tokens ?? used;
}
console.log("tokens " + used);

try {
  await client.completions.create({ model, prompt, max_tokens: -1 });
} catch (error) {
  console.log(`refused ${error.status} ${error.param}`);
}
console.log("models " + (await client.models.list()).data.map((one) => one.id).join(","));
