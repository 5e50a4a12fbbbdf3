{{/* The namespaces whose services the gateway serves, as JSON; empty: all. */}}
{{- define "weft.gatewayNamespaces" -}}
{{- default .Values.operator.watchNamespaces .Values.gateway.namespaces | toJson -}}
{{- end -}}

{{/* gateway.json. */}}
{{- define "weft.gatewayConfig" -}}
{{- $gateway := .Values.gateway -}}
{{- $keys := $gateway.auth.apiKeySecretRef.name -}}
{{- $jwt := $gateway.auth.jwt -}}
{{- $signs := $gateway.hop.keySecretRef.name -}}
{{- if and (or $keys $jwt.issuer) (not $signs) -}}
{{- fail "gateway.auth needs gateway.hop.keySecretRef: the gateway names its clients' tenants to services by tokens that it signs; write a key with 'python -m weft_router.gateway.hop_key FOLDER' (docs/gateways.md)" -}}
{{- end -}}
{{- if and $signs (not (or $keys $jwt.issuer)) -}}
{{- fail "gateway.hop.keySecretRef is set without gateway.auth: there is nobody to name to services; set gateway.auth.apiKeySecretRef or gateway.auth.jwt, or remove it" -}}
{{- end -}}
{{- $config := deepCopy $gateway.config -}}
{{- $kubernetes := dict "namespaces" (include "weft.gatewayNamespaces" . | fromJsonArray) -}}
{{- with $gateway.selector }}{{ $_ := set $kubernetes "selector" . }}{{ end -}}
{{- $_ := set $config "kubernetes" $kubernetes -}}
{{- if $signs -}}
{{- $_ := set $config "hop" (dict "keyFile" "/etc/weft-hop-key/key.pem" "issuer" $gateway.hop.issuer) -}}
{{- end -}}
{{- $auth := dict -}}
{{- if $keys }}{{ $_ := set $auth "apiKeysFile" "/etc/weft-api-keys/keys" }}{{ end -}}
{{- if $jwt.issuer -}}
{{- if eq (empty $jwt.jwksUri) (empty $jwt.jwksConfigMapRef.name) -}}
{{- fail "gateway.auth.jwt: give exactly one of jwksUri and jwksConfigMapRef.name" -}}
{{- end -}}
{{- if not $jwt.audiences }}{{ fail "gateway.auth.jwt.audiences: name at least one audience that tokens must be for" }}{{ end -}}
{{- $token := dict "issuer" $jwt.issuer "audience" $jwt.audiences "tenantClaim" $jwt.tenantClaim "classClaim" $jwt.classClaim "limitsClaim" $jwt.limitsClaim -}}
{{- if $jwt.jwksUri }}{{ $_ := set $token "jwksUrl" $jwt.jwksUri }}{{ else }}{{ $_ := set $token "jwksFile" "/etc/weft-jwks/jwks.json" }}{{ end -}}
{{- $_ := set $auth "jwt" $token -}}
{{- end -}}
{{- if $auth }}{{ $_ := set $config "auth" $auth }}{{ end -}}
{{- if $gateway.tls.secretName -}}
{{- $_ := set $config "tls" (dict "certFile" "/etc/weft-tls/tls.crt" "keyFile" "/etc/weft-tls/tls.key") -}}
{{- end -}}
{{- if $gateway.upstreamCa.configMap }}{{ $_ := set $config "upstreamCaFile" "/etc/weft-upstream-ca/ca.crt" }}{{ end -}}
{{- with $gateway.allowedOrigins }}{{ $_ := set $config "cors" (dict "allowedOrigins" .) }}{{ end -}}
{{- toJson $config -}}
{{- end -}}

{{/* The volumes with the gateway's keys and certificates; each is mounted at /etc/weft-NAME. */}}
{{- define "weft.gatewayFiles" -}}
{{- $gateway := .Values.gateway -}}
{{- with $gateway.auth.apiKeySecretRef }}{{ if .name -}}
- name: api-keys
  secret:
    secretName: {{ .name | quote }}
    defaultMode: 0444
    items:
      - {key: {{ .key | quote }}, path: keys}
{{ end }}{{ end -}}
{{- with $gateway.auth.jwt }}{{ if and .issuer .jwksConfigMapRef.name -}}
- name: jwks
  configMap:
    name: {{ .jwksConfigMapRef.name | quote }}
    items:
      - {key: {{ .jwksConfigMapRef.key | quote }}, path: jwks.json}
{{ end }}{{ end -}}
{{- with $gateway.hop.keySecretRef }}{{ if .name -}}
- name: hop-key
  secret:
    secretName: {{ .name | quote }}
    defaultMode: 0444
    items:
      - {key: {{ .key | quote }}, path: key.pem}
{{ end }}{{ end -}}
{{- with $gateway.tls.secretName -}}
- name: tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0444
{{ end -}}
{{- with $gateway.upstreamCa }}{{ if .configMap -}}
- name: upstream-ca
  configMap:
    name: {{ .configMap | quote }}
    items:
      - {key: {{ .key | quote }}, path: ca.crt}
{{ end }}{{ end -}}
{{- end -}}

{{/* Who scrapes the gateway's metrics: as the operator lets in to the pods of services. */}}
{{- define "weft.gatewayScrapers" -}}
{{- with include "weft.metricsFrom" . -}}
{{- . | fromJsonArray | toYaml -}}
{{- else -}}
- namespaceSelector: {}
  podSelector:
    matchLabels: {app.kubernetes.io/name: prometheus}
{{- end -}}
{{- end -}}
