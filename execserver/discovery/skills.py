"""What the files of a skill say about it: the front matter of `SKILL.md`, and `agents/openai.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from execprotocol.environment import SkillDependencies, SkillPolicy, SkillTool

_MAX_NAME = 64
_MAX_YAML = 16 << 10
"""Characters of YAML that are parsed: a parser in Python takes half a second for the worst of them."""

_MAX_LEVELS = 32
"""Levels of YAML that are parsed: a list in a list in a list exceeds Python's stack."""

_PRODUCTS = {
    name: name.lower() for product in ("chatgpt", "codex", "atlas") for name in (product, product.upper())
}
_MAX_TEXTS = {"type": 64, "transport": 64, "value": 1024, "description": 1024, "command": 1024, "url": 1024}
"""Longest values of a tool, in characters."""


class SkillError(ValueError):
    """The file does not describe a skill."""


class FrontMatter:
    """The name and the descriptions of a skill.

    Args:
        contents: a `SKILL.md`.
        folder: the name of its folder, for a skill without a name of its own.

    Raises:
        SkillError: there is no front matter, it is no YAML, or it has no description.
    """

    def __init__(self, contents: str, folder: str) -> None:
        text = _front_matter(contents)
        try:
            fields = _fields(text)
        except SkillError:
            # Many write prose that YAML takes for a mapping: `description: Build for AWS: ECS`.
            fields = _fields(_with_quotes(text))
        self.name = fields["name"] or " ".join(folder.split()) or "skill"
        self.description = fields["description"]
        self.short_description = fields["short-description"] or None
        if not self.description:
            raise SkillError("missing field `description`")
        if len(self.name) > _MAX_NAME:
            raise SkillError(f"`name` has more than {_MAX_NAME} characters")


def _front_matter(contents: str) -> str:
    lines = contents.split("\n")
    if lines[0].strip() != "---":
        raise SkillError("missing front matter")
    for number, line in enumerate(lines):
        if number and line.strip() == "---":
            break
    else:
        raise SkillError("the front matter has no end")
    text = "\n".join(each.removesuffix("\r") for each in lines[1:number])
    if not text or len(text) > _MAX_YAML:
        raise SkillError("the front matter is empty or too long")
    return text


def _fields(text: str) -> dict[str, str]:
    top = _mapping(_compose(text), ("name", "description", "metadata"))
    inner = top["metadata"]
    further = {"short-description": None} if inner is None else _mapping(inner, ("short-description",))
    return {
        name: " ".join((_text(node) or "").split())
        for name, node in {"name": top["name"], "description": top["description"], **further}.items()
    }


# -- prose in place of YAML

_LINE = re.compile(r"(?P<key>[^:]*[^:\s][^:]*):[ \t]+(?P<value>\S.*)", re.DOTALL)
_COMMENT = re.compile(r"(^|\s+)#.*", re.DOTALL)


def _with_quotes(text: str) -> str:
    """The text with quotes around values that YAML would misread."""
    return "\n".join(_quoted_lines(text))


def _quoted_lines(text: str) -> Iterator[str]:
    block: int | None = None
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and (not line.strip() or indent > block):
            yield line
            continue
        block = None
        match = _LINE.fullmatch(line)
        value = "" if match is None else _COMMENT.sub("", match["value"]).rstrip()
        if value.startswith(("|", ">")):
            block = indent
        if match is None:
            yield line
        elif not _needs_quotes(value):
            yield f"{match['key']}: {match['value']}"  # PyYAML takes no tab there
        else:
            comment = match["value"][len(value) :]
            escaped = value.replace("'", "''")
            yield f"{match['key']}: '{escaped}'{comment}"


def _needs_quotes(value: str) -> bool:
    if not value or value[0] in "|>'\"":
        return False
    if re.search(r":\s", value):
        return True
    if value[0] in "[{@`":
        try:
            _compose(value)
        except SkillError:
            return True
    return False


# -- agents/openai.yaml


def skill_metadata(contents: str) -> tuple[SkillDependencies | None, SkillPolicy | None]:
    """The dependencies and the policy of a skill; neither if the file is not as it should be."""
    try:
        if len(contents) > _MAX_YAML:
            return None, None
        top = _mapping(_compose(contents), ("interface", "dependencies", "policy"))
        interface = top["interface"]
        if interface is not None and not _is_null(interface):
            texts = (
                "display_name",
                "short_description",
                "icon_small",
                "icon_large",
                "brand_color",
                "default_prompt",
            )
            for node in _mapping(interface, texts).values():
                _text(node)
        return _dependencies(top["dependencies"]), _policy(top["policy"])
    except SkillError:
        return None, None


def _dependencies(node: yaml.Node | None) -> SkillDependencies | None:
    if node is None or _is_null(node):
        return None
    tools = [
        tool for each in _items(_mapping(node, ("tools",))["tools"]) if (tool := _tool(each)) is not None
    ]
    return {"tools": tools} if tools else None


def _tool(node: yaml.Node) -> SkillTool | None:
    fields = _mapping(node, (*_MAX_TEXTS, "oauth"))
    texts: dict[str, Any] = {
        name: text if text and len(text) <= longest else None
        for name, longest in _MAX_TEXTS.items()
        for text in [" ".join((_text(fields[name]) or "").split())]
    }
    port = None
    if fields["oauth"] is not None and not _is_null(fields["oauth"]):
        ports = _mapping(fields["oauth"], ("callback_port", "callbackPort"))
        port = _port(ports["callback_port"] or ports["callbackPort"])
    if texts["type"] is None or texts["value"] is None:
        return None
    return {
        "type": texts["type"], "value": texts["value"], "description": texts["description"],
        "transport": texts["transport"], "command": texts["command"], "url": texts["url"],
        "oauthCallbackPort": port,
    }  # fmt: skip


def _port(node: yaml.Node | None) -> int | None:
    if node is None or _is_null(node):
        return None
    text = _text(node) or ""
    if (
        isinstance(node, yaml.ScalarNode)
        and node.style is None
        and re.fullmatch(r"[0-9]{1,5}", text)
        and int(text) <= 0xFFFF
    ):
        return int(text)
    raise SkillError("not a port")


def _policy(node: yaml.Node | None) -> SkillPolicy | None:
    if node is None or _is_null(node):
        return None
    fields = _mapping(node, ("allow_implicit_invocation", "products"))
    products = [_PRODUCTS.get(_text(each) or "") for each in _items(fields["products"])]
    if None in products:
        raise SkillError("unknown product")
    return {
        "allowImplicitInvocation": _flag(fields["allow_implicit_invocation"]),
        "products": [each for each in products if each is not None],
    }


def _flag(node: yaml.Node | None) -> bool | None:
    if node is None or _is_null(node):
        return None
    flags = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
    if not isinstance(node, yaml.ScalarNode) or node.style is not None or node.value not in flags:
        raise SkillError("not a boolean")
    return flags[node.value]


# -- nodes of YAML. Only named ones are looked at: an alias may make a tree of a few lines endless.


class _Loader(yaml.SafeLoader):
    _level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node that is not too deep."""
        if self._level == _MAX_LEVELS:
            raise yaml.YAMLError(f"more than {_MAX_LEVELS} levels")
        self._level += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._level -= 1


def _compose(text: str) -> yaml.Node | None:
    """Parse a document without making values of it: names such as `1.50` stay as they are written."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise SkillError(f"invalid YAML: {error}") from None
    return node


def _mapping(node: yaml.Node | None, names: tuple[str, ...]) -> dict[str, yaml.Node | None]:
    """The named members of a mapping; None for one that is not there."""
    if not isinstance(node, yaml.MappingNode):
        raise SkillError("not a mapping")
    found: dict[str, yaml.Node | None] = dict.fromkeys(names)
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in found:
            if found[key.value] is not None:
                raise SkillError(f"duplicate field `{key.value}`")
            found[key.value] = value
    return found


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode):
        raise SkillError("not a list")
    items: list[yaml.Node] = node.value
    return items


def _text(node: yaml.Node | None) -> str | None:
    """A scalar as it is written; None for null."""
    if node is None or _is_null(node):
        return None
    if not isinstance(node, yaml.ScalarNode):
        raise SkillError("not a text")
    text: str = node.value
    return text


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")
