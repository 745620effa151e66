"""Settings as somebody has them at hand: a document, or one wrapped as `wrapped` knows."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.foundation.wording import some
from nri_policy.foundation.yamltext import YAMLTextError, read
from nri_policy.settings.document import Problem, SettingsError, load, load_values, place_of
from nri_policy.settings.schema import Settings
from nri_policy.settings.wrapped import is_config_map, is_values, texts_of


class GivenSettings(Struct, frozen=True, kw_only=True):
    """A text with settings in it."""

    text: str | bytes
    origin: str  # names it in messages
    at: str = "spec"  # the field that has the settings

    def load(self) -> Settings:
        """Return the settings; raises SettingsError."""
        reader = load if self.at == "spec" else load_values
        return reader(self.text, self.origin)

    def problem(self, path: str, text: str) -> Problem:
        """Return what is wrong with a field, named by its path in the settings."""
        whole = f"{self.at}.{path}"
        return Problem(whole, text, place_of(whole, self.text))


def find_settings(text: bytes, origin: str) -> GivenSettings:
    """Return where the settings are in *text*. Raises SettingsError where that is not certain."""
    try:
        document = read(text)
    except YAMLTextError:
        document = None  # reading the settings says what is wrong
    if not isinstance(document, dict):
        return GivenSettings(text=text, origin=origin)
    if is_config_map(document):
        texts = texts_of(document)
        keys = [key for key in texts if key.endswith((".yaml", ".yml"))] or [*texts]
        if len(keys) != 1:
            found = f"it has {some(keys)}" if keys else "it has no text"
            problem = f"{found}; one key with the text of the settings is expected"
            raise SettingsError(origin, (Problem("data", problem),))
        return GivenSettings(text=texts[keys[0]], origin=f"{origin}, key {keys[0]}")
    at = "config" if is_values(document) else "spec"
    return GivenSettings(text=text, origin=origin, at=at)
