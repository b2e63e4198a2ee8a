"""Messages, arrays and node names on the wire."""
