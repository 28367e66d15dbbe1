"""The head: slots over hosts. It knows no worker, and on one machine no network."""
