"""Commands of the command line that need several rooms. Everything heavy is imported inside, so that help comes at once."""
