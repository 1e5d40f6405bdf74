"""Keys of an inventory with their places in the file: inheritance, variables, and keys that must not be in a file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown
from tracebed.ground.yaml_file import YamlFile, abbreviated, invalid

Model = TypeVar("Model", bound=BaseModel)

LONGEST = 10_000  # longest accepted string after variables were replaced, in characters
REFERENCE = re.compile(r"\{([A-Za-z_]\w*)\}")
# Keys for credentials. `identity_file` and `ansible_ssh_private_key_file` name a file, and are no credentials.
SECRET = re.compile(
    r"(?:^|[_-])pass$|pass(?:word|wd|phrase)$|secrets?$|token$|credentials?$"
    r"|(?:private|api|access|ssh|host)_?key(?:_?data|_?content)?$|_vault$",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY|\$ANSIBLE_VAULT;")
BELONGS = (
    "credentials do not belong in an inventory: keep private keys in ~/.ssh with `IdentityFile` in ~/.ssh/config, "
    "passphrases in ssh-agent, and host keys in ~/.ssh/known_hosts"
)


class Place(NamedTuple):
    """A place in a YAML file: keys of mappings and indices of lists, from the outermost."""

    yaml: YamlFile
    path: tuple[int | str, ...] = ()

    def at(self, *more: int | str) -> Place:
        """Return the place at the path `more` from this place."""
        return Place(self.yaml, (*self.path, *more))

    def error(self, what: str, hint: str | None = None) -> InputError:
        """Return the error `what` at the line of this place."""
        return self.yaml.error(what, *self.path, hint=hint)

    @contextlib.contextmanager
    def of(self, subject: str = "") -> Iterator[None]:
        """Add the line of this place, and the `subject` with a colon if there is one, to errors."""
        try:
            yield
        except InputError as error:
            raise self.error(f"{subject}: {error.what}" if subject else error.what, error.hint) from error


@dataclass(frozen=True)
class Keys:
    """Keys and their values, and the place of each key, which may be in another mapping or file than `place`."""

    place: Place
    values: Mapping[str, Any]
    places: Mapping[str, Place]

    @classmethod
    def at(cls, place: Place, values: Any) -> Keys:
        """Return the keys of the mapping `values` at `place`. Raises InputError if `values` is not a mapping."""
        if not isinstance(values, dict):
            raise place.error("must be a mapping of keys to values")
        named = {str(key): value for key, value in values.items()}
        return cls(place, named, {key: place.at(key) for key in named})

    def over(self, inherited: Keys) -> Keys:
        """Return these keys, and the keys of `inherited` that are missing here."""
        return Keys(self.place, {**inherited.values, **self.values}, {**inherited.places, **self.places})

    def only(self, names: Iterable[str]) -> Keys:
        """Return the keys with these names."""
        chosen = set(names)
        return Keys(self.place, {key: value for key, value in self.values.items() if key in chosen}, self.places)

    def without(self, names: Iterable[str]) -> Keys:
        """Return the keys without these names."""
        return self.only(self.values.keys() - set(names))

    def filled(self, variables: Mapping[str, Any]) -> Keys:
        """Return the keys with the values of variables in place of `{name}` (see `fill`)."""
        values = {}
        for key, value in self.values.items():
            with self.places[key].of(key):
                values[key] = fill(value, variables)
        return Keys(self.place, values, self.places)

    def unknown(self, key: str, known: Iterable[str]) -> InputError:
        """Return the error for the unknown key `key`, with its line and the most similar of the `known` keys."""
        return self.places[key].error(f"unknown key {abbreviated(key)}", unknown("key", key, sorted(known)).hint)

    def checked(self, model: type[Model]) -> Model:
        """Return the keys as `model`. A missing key, or an unknown or invalid one, is an InputError with the line."""
        try:
            with self.place.of():
                return model.model_validate(dict(self.values))
        except ValidationError as error:
            found = invalid(error, dict(self.values))
            key, *rest = found.path or [""]
            if found.kind == "extra_forbidden" and not rest:
                raise self.unknown(str(key), model.model_fields) from error
            place = self.places.get(str(key), self.place).at(*rest) if found.path else self.place
            field = model.model_fields.get(str(key))
            hint = (field.description if field else None) or ""  # the keys of a whole file would not help
            raise place.error(found.what, " ".join(hint.split()).rstrip(".")) from error


def fill(value: Any, variables: Mapping[str, Any]) -> Any:
    """Return `value` with the values of variables in place of `{name}`, also inside lists and mappings.

    A string that is only a reference gets the type of the variable. Nothing is evaluated. An unknown variable, `{{` or
    a private key in a string, and a result that is too long are an InputError.
    """
    if isinstance(value, dict):
        return {key: fill(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables) for item in value]
    if not isinstance(value, str):
        return value
    refuse_templates(value)
    for name in REFERENCE.findall(value):
        if name not in variables:
            raise unknown("variable", name, sorted(variables) or ["(no variables are set with `vars:`)"])
    whole = REFERENCE.fullmatch(value)
    if whole:
        return variables[whole[1]]
    if sum(len(str(variables[name])) for name in REFERENCE.findall(value)) + len(value) > LONGEST:
        raise InputError(f"is longer than {LONGEST:,} characters with its variables", hint="use shorter values")
    return REFERENCE.sub(lambda found: str(variables[found[1]]), value)


def refuse_templates(value: str) -> None:
    """Raise InputError if `value` is a template or a credential."""
    if "{{" in value or "{%" in value:
        what = f"template {abbreviated(value)} is not evaluated"
        raise InputError(what, hint="write the value itself, or a variable of `vars:` as {name}")
    if SECRET_VALUE.search(value):
        raise InputError("the value is a credential", hint=BELONGS)


def refuse_credentials(yaml: YamlFile) -> None:
    """Raise InputError with the line if the file has a key for a credential, anywhere."""
    todo: list[Any] = [yaml.tree] if yaml.tree is not None else []
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if not isinstance(node.value, list):
            continue
        for child in node.value:
            key, value = child if isinstance(child, tuple) else (None, child)
            if key is not None and isinstance(key.value, str) and SECRET.search(key.value):
                where = f"{yaml.where}:{key.start_mark.line + 1}"
                raise InputError(f"key {abbreviated(key.value)} is for a credential", where=where, hint=BELONGS)
            todo.append(value)
