"""Values, spaces and infos as plain data; nothing here opens anything."""
