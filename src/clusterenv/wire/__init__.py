"""Between the head and hosts on other machines: messages, sockets, handshake, limits."""
