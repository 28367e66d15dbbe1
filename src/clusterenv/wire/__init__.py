"""What travels between head and workers, and how. The only ground the two share."""
