"""A template with its renderer, and the results of all checks on it."""

from dataclasses import dataclass

import template_checks as checks
from gymnast.envs import Renderer
from gymnast.errors import GymnastError, TemplateError
from template_corpus import Template, tokenizer_for
from template_reference import Reference


@dataclass(frozen=True)
class Subject:
    """A template with its renderer, and with what the template itself writes."""

    renderer: Renderer
    reference: Reference

    @classmethod
    def of(cls, template: Template) -> "Subject | None":
        """Build both; None where the renderer refuses the template."""
        try:
            renderer = Renderer(tokenizer_for(template))
        except TemplateError:
            return None
        return cls(renderer, Reference(template, plain=renderer.dialect is None))


@dataclass(frozen=True)
class Result:
    """What the checks say of a template.

    Attributes:
        subject: The template and its renderer; None where it is refused.
        writes_calls: Whether the template itself writes calls.
        failures: The checks that fail, and why.
    """

    subject: Subject | None
    writes_calls: bool
    failures: list[tuple[str, str]]

    @property
    def round_trips(self) -> bool:
        """Whether all calls are read back as the template writes them."""
        spoilt = ("construction", "dialect", "round trip")
        return not any(check.startswith(spoilt) for check, _ in self.failures)


def examine(template: Template) -> Result:
    """Run every check with its fixed cases."""
    try:
        renderer = Renderer(tokenizer_for(template))
    except GymnastError as error:
        return Result(None, Reference(template).writes_calls, [("construction", str(error))])
    subject = Subject(renderer, Reference(template, plain=renderer.dialect is None))
    writes_calls = subject.reference.writes_calls
    if renderer.dialect is None and writes_calls:
        reason = "the template writes calls; the renderer uses the plain protocol"
        return Result(subject, writes_calls, [("dialect", reason)])
    failures = list(checks.all_failures(renderer, subject.reference))
    return Result(subject, writes_calls, failures)
