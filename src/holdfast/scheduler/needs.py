"""What the scheduler needs, looked for before anything of it is imported."""

from importlib.util import find_spec

from ..errors import MissingExtra

_missing = [name for name in ("cronsim", "httpx", "psycopg", "sqlalchemy") if find_spec(name) is None]
if _missing:
    raise MissingExtra(f"the scheduler needs {', '.join(_missing)}: pip install 'holdfast[scheduler]'")
