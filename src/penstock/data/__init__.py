"""Values and columns: codecs, Arrow scans, typed fields."""
