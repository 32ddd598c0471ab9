"""``holdfast serve``: one ASGI application around the rest. Routes check and translate; what they do is elsewhere."""
