"""Line charts as SVG text: enough for the plots in docs/, without a dependency."""
import math

COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 64, 170, 34, 46


def ticks(low, high, is_log):
    if is_log:
        return [10.0 ** k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
                if low <= 10.0 ** k * 1.0001 and 10.0 ** k <= high * 1.0001]
    raw = (high - low) / 5 or 1.0
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def label(value):
    if value >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def chart(title, x_name, y_name, lines, log_x=False, log_y=False):
    """lines: {name: [(x, y), ...]}; returns the SVG text."""
    points = [p for line in lines.values() for p in line]
    floor = 1e-9
    xs = [max(p[0], floor) if log_x else p[0] for p in points]
    ys = [max(p[1], floor) if log_y else p[1] for p in points]
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys) if log_y else min(0.0, min(ys)), max(ys)
    x_high, y_high = max(x_high, x_low * 1.01 + 1e-12), max(y_high, y_low * 1.01 + 1e-12)

    def place(value, low, high, is_log):
        if is_log:
            return (math.log10(max(value, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return (value - low) / (high - low)

    def px(x):
        return LEFT + place(x, x_low, x_high, log_x) * (WIDTH - LEFT - RIGHT)

    def py(y):
        return HEIGHT - BOTTOM - place(y, y_low, y_high, log_y) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="20" font-size="14" fill="#1f2328">{title}</text>']
    for x in ticks(x_low, x_high, log_x):
        out.append(f'<line x1="{px(x):.1f}" y1="{TOP}" x2="{px(x):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eaeef2"/>'
                   f'<text x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#57606a">'
                   f'{label(x)}</text>')
    for y in ticks(y_low, y_high, log_y):
        out.append(f'<line x1="{LEFT}" y1="{py(y):.1f}" x2="{WIDTH - RIGHT}" y2="{py(y):.1f}" stroke="#eaeef2"/>'
                   f'<text x="{LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end" fill="#57606a">{label(y)}</text>')
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
                   f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 14 + 18 * i}" fill="{colour}">{name}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#1f2328">'
               f'{x_name}</text><text x="14" y="{middle:.0f}" transform="rotate(-90 14 {middle:.0f})" '
               f'text-anchor="middle" fill="#1f2328">{y_name}</text></svg>')
    return "\n".join(out) + "\n"
