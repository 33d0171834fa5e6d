"""The translators, one file each; the file's name is the `--method` name."""
