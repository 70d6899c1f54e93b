"""`/v1/responses`: OpenAI's newer API, made of items. Answers are not stored."""
