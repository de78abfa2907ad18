"""The commands of the command line. They work on configurations, and print text, or JSON with `--json`."""
