"""What can be set: by ``HOLDFAST_…`` variables, or in table ``[server]`` of ``holdfast.toml`` in the current folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AnyHttpUrl, BeforeValidator, Field, SecretStr, TypeAdapter, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ..agents.outbox import Kind
from ..errors import InvalidOption
from ..hooks.folders import client_config_dir, data_dir

CONFIG_FILE = "holdfast.toml"


def _transcripts() -> Path:
    return client_config_dir() / "projects"


def _words(given: Any) -> Any:
    """A list, as TOML has it; in a variable also with commas between."""
    if not isinstance(given, str):
        return given
    return json.loads(given) if given.startswith("[") else [word.strip() for word in given.split(",") if word.strip()]


_Words = (NoDecode, BeforeValidator(_words))


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", toml_file=CONFIG_FILE, toml_table_header=("server",), hide_input_in_errors=True
    )

    database_url: SecretStr | None = Field(None, description="postgresql://…; without it an embedded server is started")
    data_dir: Path = Field(default_factory=data_dir, description="tokens, and the embedded server's data")
    host: str = Field("127.0.0.1", description="where to listen")
    port: int = Field(8765, ge=0, le=65535, description="0: any that is free")
    workers: int = Field(1, ge=1, le=64, description="processes")
    pool_size: int = Field(15, ge=1, description="connections that each worker keeps")
    max_overflow: int = Field(10, ge=0, description="further ones that it opens when it needs them")
    allowed_hosts: Annotated[list[str], *_Words] = Field(
        [], description="names this server is called by, beside localhost"
    )
    max_body: int = Field(8 * 2**20, ge=1024, description="bytes of a request at most")
    hook_wait: float = Field(15.0, ge=0, description="seconds that a hook waits for its agent's lock")
    stream_patience: float = Field(10.0, gt=0, description="seconds for a reader of changes that takes nothing")
    transcripts: Path = Field(default_factory=_transcripts, description="the only folder that transcripts are read in")
    keep_days: float = Field(90.0, ge=0, le=36500, description="for agents not heard of since; 0: for ever")
    tenant: str = Field("default", min_length=1, description="of the tokens that the first start makes")
    notify_url: SecretStr | None = Field(None, description="a webhook that is told of what needs a person")
    notify_on: Annotated[frozenset[Kind], *_Words] = Field(
        frozenset({Kind.AWAITING_INPUT, Kind.COMPLETE}), description="what it is told of; also: ended"
    )

    @field_validator("notify_url")
    @classmethod
    def _is_an_address(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            try:
                TypeAdapter(AnyHttpUrl).validate_python(url.get_secret_value())
            except ValidationError:  # which would show it
                raise ValueError("give an address that begins with http:// or https://") from None
        return url

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def tells(self) -> frozenset[Kind]:
        """What messages are written of: none if nobody is to get them."""
        return self.notify_on if self.notify_url is not None else frozenset()

    @property
    def connections(self) -> int:
        """Of the pool of one worker."""
        return self.pool_size + self.max_overflow


def load(**given: Any) -> Settings:
    """The settings, or ``InvalidOption`` that names what is wrong and shows no value."""
    try:
        return Settings(**given)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise InvalidOption(f"settings: {wrong}") from None
    except ValueError as error:  # TOML that cannot be read
        raise InvalidOption(f"{CONFIG_FILE}: {error}") from None
