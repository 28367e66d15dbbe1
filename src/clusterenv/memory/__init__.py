"""What a host and its workers share: rows, flags, mailboxes, frames, weights. No sockets."""
