"""What tests of several kinds share: lakes, sinks, true rows, kills."""
