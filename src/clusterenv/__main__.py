"""``python -m clusterenv``."""

from clusterenv.tools.main import main

if __name__ == "__main__":
    main()
