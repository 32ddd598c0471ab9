"""Addresses of servers, with what a test adds to them."""


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"
