"""Every environment that more than one test file uses, by what it is for."""
