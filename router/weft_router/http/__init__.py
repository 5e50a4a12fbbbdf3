"""HTTP/1.1 and server-sent events: framing without sockets, and the sockets around it."""
