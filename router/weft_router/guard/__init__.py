"""Who may ask for what: keys, tokens, rates, fair shares, admission."""
