"""The command line `mtmoe`: one file, one command."""
