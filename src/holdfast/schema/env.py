"""Run by Alembic for every command: on a connection that ``migrations.py`` has opened, or to write a script."""

from alembic import context

from holdfast.schema.migrations import SCHEMA, VERSION_TABLE

# Not `create schema if not exists`, which needs the right to create one even if it exists: a DBA may have made it.
_MAKE_SCHEMA = f"""
do $$ begin
    if not exists (select from pg_namespace where nspname = '{SCHEMA}') then
        create schema {SCHEMA};
    end if;
end $$"""

context.configure(
    connection=context.config.attributes["connection"],
    dialect_name="postgresql",
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
)
with context.begin_transaction():
    context.execute(_MAKE_SCHEMA)
    context.run_migrations()
