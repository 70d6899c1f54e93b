"""`/v1/responses`: OpenAI's newer form of conversations, made of items. Nothing is stored."""
