"""Each phase alone: the latencies that integer programs choose by."""
