"""Reading beyond one reader: look-ups by place, many logs as one, asyncio."""
