"""The long run: ``python -m sim.models slot --records 2 --openers 2`` visits one scope of a model.

Without arguments it visits the scopes that the tests visit. It prints the number of states, and the
steps that led to a violation.

Exit status: 0 no kept rule was violated and each broken rule was caught; 1 otherwise.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import fields, replace

from sim.models.explore import STATES_MAX
from sim.models.scopes import CANARIES, HOLDING, RULES, SCOPES, Scope, command_of, visit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.models", description=__doc__)
    models = parser.add_subparsers(dest="model", metavar="{" + ",".join(SCOPES) + "}")
    for name, scope in SCOPES.items():
        _add_model(models.add_parser(name), scope, RULES[name])
    given = vars(parser.parse_args(arguments))
    model, states_max = given.pop("model"), given.pop("states", STATES_MAX)
    scopes: tuple[Scope, ...] = (*HOLDING, *CANARIES)
    if model is not None:
        scopes = (replace(SCOPES[model], **given),)
    wrong = [scope for scope in scopes if not _is_right(scope, states_max)]
    return 1 if wrong else 0


def _add_model(parser: argparse.ArgumentParser, scope: Scope, broken: dict[str, str]) -> None:
    rules = "; ".join(f"{name}: {sentence}" for name, sentence in broken.items())
    for each in fields(scope):
        default = getattr(scope, each.name)
        if isinstance(default, bool):
            parser.add_argument(f"--{each.name}", action="store_true")
        elif default is None:
            parser.add_argument(f"--{each.name}", choices=[*broken], help=rules)
        else:
            parser.add_argument(f"--{each.name}", type=int, default=default)
    parser.add_argument("--states", type=int, default=STATES_MAX, help="stop when there are more")


def _is_right(scope: Scope, states_max: int) -> bool:
    begin = time.monotonic()
    found = visit(scope, states_max=states_max)
    seconds = time.monotonic() - begin
    print(f"{command_of(scope)}: seconds={seconds:.0f} {found.render()}", flush=True)
    return (found.violation is None) == (scope.broken is None)


if __name__ == "__main__":
    raise SystemExit(main())
