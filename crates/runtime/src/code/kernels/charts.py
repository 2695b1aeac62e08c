"""What a figure of matplotlib shows, as data: lines, points, bars, slices and boxes with their labels.

It reads what was drawn, and doesn't draw. The shapes are those that E2B's clients know."""

import datetime
import math
import re

UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
POINTS_MAX = 20_000


def of_figure(figure):
    axes = [each for each in figure.get_axes() if each.has_data()]
    if not axes:
        return None
    if len(axes) == 1:
        return of_axes(axes[0])
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) is not None else ""
    return {"type": "superchart", "title": title, "elements": [of_axes(each) for each in axes]}


def of_axes(axes):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge
    from matplotlib.text import Text

    drawn = [each for each in axes._children if not isinstance(each, Text)]

    def are(kinds, among):
        return bool(among) and all(isinstance(each, kinds) for each in among)

    if are(Line2D, drawn) and not is_box(axes):
        return {"type": "line", **points(axes), "elements": lines(axes)}
    if is_box(axes) or are((PathPatch, Line2D), drawn):
        return {"type": "box_and_whisker", **plane(axes), **boxes(axes)}
    drawn = [each for each in drawn if not (isinstance(each, Line2D) and is_straight(each))]
    if are(PathCollection, drawn):
        return {"type": "scatter", **points(axes), "elements": scattered(axes)}
    if are(Wedge, drawn):
        return {"type": "pie", "title": text(axes.get_title()), "elements": slices(axes)}
    if are(Rectangle, drawn):
        return {"type": "bar", **plane(axes), **bars(axes)}
    return {"type": "unknown", "title": text(axes.get_title()), "elements": []}


def text(value):
    return value or None


def plane(axes):
    labels = {"title": text(axes.get_title()), "x_label": text(axes.get_xlabel()), "y_label": text(axes.get_ylabel())}
    for which in "xy":
        found = UNIT.search(labels[f"{which}_label"] or "")
        labels[f"{which}_unit"] = (found.group(1) or found.group(2)) if found else None
    return labels


def turned(labels):
    """The same with the axes exchanged, for charts that lie on their side."""
    return {f"{other}_{what}": labels[f"{one}_{what}"] for one, other in ("xy", "yx") for what in ("label", "unit")}


def points(axes):
    found = plane(axes)
    for which, axis, scale in (("x", axes.xaxis, axes.get_xscale()), ("y", axes.yaxis, axes.get_yscale())):
        ticks, labels = list(axis.get_ticklocs()), [label.get_text() for label in axis.get_ticklabels()]
        is_date = type(converter(axis)).__name__ == "_SwitchableDateConverter"
        if is_date:
            import matplotlib.dates

            ticks = [matplotlib.dates.num2date(tick).isoformat() for tick in ticks]
            scale = "datetime"
        else:
            ticks = [float(tick) for tick in ticks]
            is_category = bool(ticks) and all(tick == i and str(i) != label for i, (tick, label) in enumerate(zip(ticks, labels)))
            scale = "categorical" if scale == "linear" and is_category else scale
        found.update({f"{which}_ticks": ticks, f"{which}_tick_labels": labels, f"{which}_scale": scale})
    return found


def converter(axis):
    get = getattr(axis, "get_converter", None)
    return get() if get is not None else getattr(axis, "converter", None)


def is_straight(line):
    """A line of a grid, or one that marks a value."""
    x, y = list(line.get_xdata()), list(line.get_ydata())
    return len(x) == 2 and len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def coordinate(value):
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else None
    return str(value)


def pairs(x, y):
    return [[coordinate(a), coordinate(b)] for a, b in list(zip(x, y))[:POINTS_MAX]]


def lines(axes):
    found = []
    for line in axes.get_lines():
        if is_straight(line) and len(axes.get_lines()) > 1:
            continue
        label = str(line.get_label())
        label = f"Line {label[6:]}" if re.match(r"^_child\d+$", label) else label
        found.append({"label": label, "points": pairs(line.get_xdata(), line.get_ydata())})
    return found


def scattered(axes):
    return [
        {"label": str(each.get_label()), "points": [[coordinate(x), coordinate(y)] for x, y in each.get_offsets()[:POINTS_MAX]]}
        for each in axes.collections
    ]


def slices(axes):
    return [
        {"label": str(each.get_label()), "angle": abs(rounded(each.theta2 - each.theta1)), "radius": float(each.r)}
        for each in axes.patches
    ]


def rounded(number):
    number = float(number)
    if not math.isfinite(number) or number == 0:
        return number
    return round(number, max(0, 8 - int(math.floor(math.log10(abs(number))))))


def bars(axes):
    found, is_flat = [], False
    for container in axes.containers:
        group = str(container.get_label())
        group = f"Group {group[10:]}" if re.match(r"^_container\d+$", group) else group
        orientation = getattr(container, "orientation", None)
        heights = [bar.get_height() for bar in container]
        lies = orientation == "horizontal" if orientation else len(heights) > 1 and len(set(heights)) == 1
        is_flat = is_flat or lies
        names = [label.get_text() for label in (axes.get_yticklabels() if lies else axes.get_xticklabels())]
        values = [bar.get_width() for bar in container] if lies else heights
        for i, value in enumerate(values):
            name = names[i] if i < len(names) and len(names) >= len(values) else str(i)
            found.append({"label": name, "group": group, "value": coordinate(float(value))})
    return {"elements": found, **(turned(plane(axes)) if is_flat else {})}


def is_box(axes):
    """Boxes are drawn as lines (the default) or as patches, with five values each."""
    return bool(box_lines(axes) or box_patches(axes))


def box_patches(axes):
    from matplotlib.patches import PathPatch

    return [each for each in axes.patches if isinstance(each, PathPatch)]


def box_lines(axes):
    """Closed lines with four corners."""
    found = []
    for line in axes.get_lines():
        x, y = [float(v) for v in number_list(line.get_xdata())], [float(v) for v in number_list(line.get_ydata())]
        if len(x) == 5 and (x[0], y[0]) == (x[4], y[4]) and len(set(x)) == 2 and len(set(y)) == 2:
            found.append(line)
    return found


def number_list(values):
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        return []


def boxes(axes):
    shapes = []
    for patch in box_patches(axes):
        corners = patch.get_path().vertices
        shapes.append(([float(v) for v in corners[:, 0]], [float(v) for v in corners[:, 1]]))
    own = box_lines(axes)
    shapes += [(number_list(line.get_xdata()), number_list(line.get_ydata())) for line in own]
    if not shapes:
        return {"elements": []}
    # Boxes of one chart are equally wide.
    widths, heights = [max(x) - min(x) for x, _ in shapes], [max(y) - min(y) for _, y in shapes]
    lies = len(shapes) > 1 and spread(heights) + 1e-9 < spread(widths)
    if len(shapes) == 1:
        lies = any(label.get_text() for label in axes.get_yticklabels()) and len(axes.get_yticklabels()) == 1
    labels = [label.get_text() for label in (axes.get_yticklabels() if lies else axes.get_xticklabels())]
    found = []
    for i, (x, y) in enumerate(shapes):
        across, along = (y, x) if lies else (x, y)
        found.append({"label": labels[i] if i < len(labels) else str(i + 1), "from": min(across), "to": max(across), "low": min(along), "high": max(along), "min": min(along), "max": max(along), "median": None, "outliers": []})
    for line in axes.get_lines():
        if any(line is each for each in own):
            continue
        across, along = number_list(line.get_xdata()), number_list(line.get_ydata())
        if lies:
            across, along = along, across
        if not across or not along:
            continue
        box = next((box for box in found if box["from"] - 1e-9 <= min(across) and max(across) <= box["to"] + 1e-9), None)
        if box is None:
            continue
        if str(line.get_linestyle()) in ("None", "none", "", " ") or (len(along) != 2):
            box["outliers"] += along
        elif abs(along[0] - along[1]) < 1e-12 and box["low"] - 1e-9 <= along[0] <= box["high"] + 1e-9:
            if abs(max(across) - min(across) - (box["to"] - box["from"])) < 1e-6:
                box["median"] = along[0]
        else:
            box["min"], box["max"] = min(box["min"], *along), max(box["max"], *along)
    elements = [
        {"label": box["label"], "min": rounded(box["min"]), "first_quartile": rounded(box["low"]), "median": rounded(box["median"] if box["median"] is not None else box["low"]), "third_quartile": rounded(box["high"]), "max": rounded(box["max"]), "outliers": [rounded(each) for each in box["outliers"]]}
        for box in found
    ]
    return {"elements": elements, **(turned(plane(axes)) if lies else {})}


def spread(values):
    return max(values) - min(values)
