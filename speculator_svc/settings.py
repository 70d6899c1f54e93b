"""Settings of a speculator service (environment prefix SPECINFER_SPECULATOR_)."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specinfer.drafters import DRAFTERS, DrafterOptions
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.model_options import DraftModel, DraftOptions
from specinfer.service.settings import Listen, MetricsPort, ServiceSettings
from specinfer.system.threads import THREADS_HELP


class SpeculatorSettings(ServiceSettings, DraftOptions):  # type: ignore[misc]  # not frozen
    """A speculator service drafts token trees with one drafter or several."""

    group: ClassVar[str] = "Drafters"

    model_config = SettingsConfigDict(
        **{**ServiceSettings.model_config, "env_prefix": "SPECINFER_SPECULATOR_"}
    )

    listen: Listen = "127.0.0.1:50053"
    metrics_port: MetricsPort = 9466
    name: str = Field(
        "",
        description="Name in statistics; empty: the drafter's name. For several drafters, a prefix of their names.",
    )
    drafter: str = Field(
        "ngram", description=f"Drafting method: {', '.join(DRAFTERS)}; or several, as in ngram+ssm."
    )
    threads: int = Field(0, ge=0, description=f"CPU threads; {THREADS_HELP}.")
    model: DraftModel = DEFAULT_MODEL
    learn: str = Field(
        "",
        description="ssm: directory of weights that `specinfer train follow` learns from requests; empty: "
        "requests are not stored.",
    )

    @property
    def drafters(self) -> list[str]:
        """Names of the drafters."""
        names = self.drafter.split("+")
        if len(set(names)) < len(names):
            raise SettingError("drafter", self.drafter, "must name each drafter once")
        return names

    @property
    def names(self) -> list[str]:
        """Names of the speculators, in the order of `drafters`."""
        if len(self.drafters) == 1:
            return [self.name or self.drafter]
        return [f"{self.name}-{drafter}" if self.name else drafter for drafter in self.drafters]

    def drafter_options(self) -> DrafterOptions:
        names = DrafterOptions.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return DrafterOptions(**{name: getattr(self, name) for name in names})
