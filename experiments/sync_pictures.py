"""The picture of an env's sync experiments: return over steps, pulls, return against bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from intervals import half_width

Result = dict[str, Any]
# The ones that the others are compared with are drawn with their intervals.
_MAIN = ("always", "adaptive:0.1", "every:8")


def draw(env: str, rules: dict[str, list[Result]]) -> Any:
    """Three panels; ``rules`` has the runs of each rule."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.6), layout="constrained")
    curves, pulls, trade_off = figure.subplots(1, 3)
    styles = _styles(list(rules))
    for rule, runs in rules.items():
        _draw_curve(curves, rule, runs, styles[rule])
        _draw_pulls(pulls, runs, styles[rule])
        _draw_trade_off(trade_off, runs, styles[rule])
    curves.set(
        title=f"{env}: return while training",
        xlabel="environment steps",
        ylabel="last 100 episodes, mean over seeds",
    )
    pulls.set(title="Cumulative pulls per host", xlabel="version", ylabel="pulls", yscale="log")
    trade_off.set(
        title="Final return against bytes, with 95 % intervals",
        xlabel="kB for weights and announcements",
        ylabel="return of the learner's policy",
        xscale="log",
    )
    ticks = [100, 200, 400, 800]
    trade_off.set_xticks(ticks, labels=map(str, ticks))
    trade_off.set_xticks([], minor=True)
    figure.legend(*curves.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _label(rule: str) -> str:
    name, _, value = rule.partition(":")
    words = {"adaptive": "threshold {}", "every": "every {}th", "rate": "budget: {} of versions"}
    return words.get(name, name).format(value)


def _styles(rules: list[str]) -> dict[str, dict[str, Any]]:
    from matplotlib import colormaps

    def shades(names: list[str], colours: str) -> dict[str, Any]:
        places = np.linspace(0.35, 0.95, max(1, len(names)))
        return dict(zip(names, colormaps[colours](places), strict=True))

    colours = {
        **shades([rule for rule in rules if rule.startswith("adaptive")], "Blues"),
        **shades([rule for rule in rules if rule.startswith("every")], "Oranges"),
    }
    return {
        rule: {
            "color": colours.get(rule, "black" if rule == "always" else "green"),
            "linestyle": "--" if rule.startswith("every") else "-",
            "linewidth": 2.0 if rule in _MAIN else 1.0,
        }
        for rule in rules
    }


def _draw_curve(axes: Any, rule: str, runs: list[Result], style: dict[str, Any]) -> None:
    # Runs differ in when their first episode ends, and so in where their curves begin.
    first = max(run["curve"][0][0] for run in runs)
    steps = [step for step, _, _ in runs[0]["curve"] if step >= first]
    returns = np.array(
        [[value for step, value, _ in run["curve"] if step >= first] for run in runs]
    )
    mean = returns.mean(axis=0)
    axes.plot(steps, mean, label=_label(rule), **style)
    if rule in _MAIN:
        width = [half_width(column) for column in returns.T]
        axes.fill_between(steps, mean - width, mean + width, color=style["color"], alpha=0.15)


def _draw_pulls(axes: Any, runs: list[Result], style: dict[str, Any]) -> None:
    versions = np.arange(1, runs[0]["versions"] + 1)
    hosts = [np.array(pulled) for run in runs for pulled in run["pulled_versions"]]
    counts = [(pulled[None, :] <= versions[:, None]).sum(axis=1) for pulled in hosts]
    axes.plot(versions, np.mean(counts, axis=0), **style)


def _draw_trade_off(axes: Any, runs: list[Result], style: dict[str, Any]) -> None:
    returns = [run["return"] for run in runs]
    kilobytes = float(np.mean([run["sync_bytes"] for run in runs])) / 1e3
    marker = "s" if style["linestyle"] == "--" else "o"
    axes.errorbar(
        kilobytes,
        np.mean(returns),
        half_width(returns),
        fmt=marker,
        color=style["color"],
        linewidth=style["linewidth"],
        capsize=3,
    )
