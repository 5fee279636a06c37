"""Units of measure and money: which ones convert, and how they are written. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from vtcli.signals.scorers.notation import CJK


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as powers of base units: km/h is ``{length: 1, time: -1}`` with the factor 1000/3600."""

    powers: frozenset[tuple[str, int]]
    factor: Fraction

    def times(self, other: Unit, power: int = 1) -> Unit:
        """The product of this unit and a power of another one."""
        sums = dict(self.powers)
        for base, exponent in other.powers:
            sums[base] = sums.get(base, 0) + power * exponent
        return Unit(frozenset((b, e) for b, e in sums.items() if e), self.factor * other.factor**power)


ONE = Unit(frozenset(), Fraction(1))


_TABLE = """
length 1e-9 nm nanometer nanometre 纳米
length 1e-6 um µm μm micrometer micrometre micron 微米
length 1e-3 mm millimeter millimetre 毫米 ミリ 밀리미터
length 1e-2 cm centimeter centimetre 厘米 公分 センチ 센티미터
length 1e-1 dm decimeter decimetre 分米
length 1 m meter metre 米 公尺 メートル 미터
length 1000 km kilometer kilometre 千米 公里 キロメートル 킬로미터
length 0.0254 in inch inche 英寸 인치 インチ
length 0.3048 ft foot feet 英尺 フィート 피트
length 0.9144 yd yard 码
length 1609.344 mi mile 英里 マイル 마일
length^2 10000 ha hectare 公顷
length^2 4046.8564224 acre 英亩
length^2 2000/3 亩
length^3 1e-6 ml milliliter millilitre cc 毫升 ミリリットル 밀리리터
length^3 1e-5 cl
length^3 1e-4 dl
length^3 1e-3 l liter litre 升 リットル 리터
length^3 0.003785411784 gal gallon 加仑
mass 1e-3 mg milligram 毫克
mass 1 g gram 克 グラム 그램
mass 1000 kg kilogram kilo 千克 公斤 キログラム 킬로그램
mass 1e6 ton tonne 吨 トン 톤
mass 453.59237 lb pound 磅 파운드
mass 28.349523125 oz ounce 盎司
mass 500 斤
time 1e-3 ms millisecond 毫秒
time 1 s sec second 秒 秒钟 초
time 60 min minute 分钟 分鐘 분
time 3600 h hr hour 小时 小時 時間 시간
time 86400 day 天 日間 일
time 604800 week 周 星期
month 1 month mo 个月 個月 개월
month 12 year yr 年 년
degree 1 ° degree deg 度 도
radian 1 rad radian 弧度
celsius 1 °C ℃ celsius 摄氏度
fahrenheit 1 °F ℉ fahrenheit 华氏度
kelvin 1 kelvin
newton 1 N newton 牛 牛顿
newton 1000 kN
joule 1 J joule 焦耳
joule 1000 kJ
joule 4.184 cal calorie 卡
joule 4184 kcal 大卡
joule 3600000 kWh
watt 1 W watt 瓦
watt 1000 kW kilowatt 千瓦
watt 1e6 MW megawatt
watt 1e9 GW gigawatt
pascal 1 Pa pascal 帕
pascal 1000 kPa 千帕
pascal 1e6 MPa
pascal 1e5 bar
pascal 101325 atm
volt 1 V volt 伏
volt 1e-3 mV
volt 1000 kV
ampere 1 A amp ampere 安 安培
ampere 1e-3 mA
ohm 1 Ω ohm 欧姆
ohm 1000 kΩ
hertz 1 Hz hertz 赫兹
hertz 1000 kHz
hertz 1e6 MHz
hertz 1e9 GHz
mole 1 mol mole 摩尔
mole 1e-3 mmol
byte 1 byte 字节
byte 1000 KB
byte 1e6 MB
byte 1e9 GB
byte 1e12 TB
pixel 1 px pixel 像素
usd 1 $ USD dollar US$ 美元
usd 1/100 cent ¢ 美分
eur 1 € EUR euro 欧元
gbp 1 £ GBP quid 英镑
gbp 1/100 pence
yuan 1 ¥ CNY RMB JPY yuan yen 元 人民币 円 块钱
won 1 ₩ KRW won 원
rupee 1 ₹ INR rupee
"""
"""A unit a line: its base and power, how many of the base it is, and its names, in English without the plural."""


def _read_table() -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for line in _TABLE.split("\n")[1:-1]:
        kind, factor, *names = line.split()
        base, _, power = kind.partition("^")
        found |= dict.fromkeys(names, Unit(frozenset({(base, int(power or 1))}), Fraction(factor)))
    return found


UNITS = _read_table()
_LOWER = {name.lower(): unit for name, unit in reversed(UNITS.items())}
_COMPOUND = {
    "mph": UNITS["mi"].times(UNITS["h"], -1),
    **dict.fromkeys(("kph", "kmh"), UNITS["km"].times(UNITS["h"], -1)),
}
MONEY = "$€£¥₩₹"
SCALES = {
    **{"%": Fraction(1, 100), "percent": Fraction(1, 100), "percentage": Fraction(1, 100), "‰": Fraction(1, 1000)},
    **{
        "thousand": Fraction(10**3),
        "million": Fraction(10**6),
        "billion": Fraction(10**9),
        "trillion": Fraction(10**12),
    },
    **{"dozen": Fraction(12), "pct": Fraction(1, 100)},
}
_ATTACHED = frozenset(["m", "g", "s", "h", "l", "L"])
"""Single letters that touch their number: others, as in 5x and 2a, are variables."""

_EAST = sorted((n for n in UNITS if re.match(f"[{CJK}]", n)), key=len, reverse=True)
_SIGNS = sorted((n for n in UNITS if not re.match(rf"[A-Za-z{CJK}]", n)), key=len, reverse=True)
_NAME = re.compile(
    rf"(?P<raised>sq(?:uare|\.)?|cu(?:bic|\.)?|平方|立方)?\s?"
    rf"(?P<name>{'|'.join(map(re.escape, (*_SIGNS, *_EAST)))}|[A-Za-zµμΩ]{{1,12}})\.?"
    r"(?P<power>\s?\^\s?[{(]?(?P<exponent>[-+]?\d)[})]?(?!\d)|(?P<digit>(?<=m)[23])(?!\w))?",
)
_JOIN = re.compile(r"\s?(?P<by>[/*·]|\bper\b)\s?(?P<open>\()?|(?P<space>\s)")
MAX_FACTORS = 6


def named(name: str) -> Unit | None:
    """The unit of a name, in the plural too; None for another word.

    A capital counts only where a letter has two meanings: ``mW`` is no ``MW``.
    """
    if name in UNITS:
        return UNITS[name]
    lower = name.lower()
    for form in (lower, lower.removesuffix("s") if len(lower) > 2 else "", lower.removesuffix("es")):
        if len(form) > 1 and form in _COMPOUND:
            return _COMPOUND[form]
        if form in UNITS and (len(form) > 1 or form in _ATTACHED):
            return UNITS[form]
        if len(form) > 2 and form in _LOWER:
            return _LOWER[form]
    return None


def read(text: str, start: int) -> tuple[Unit | None, int]:
    """The unit that begins at ``start`` and where it ends: ``m/s^2``, ``square feet``, ``cm^3``; (None, start) without
    one."""
    unit, at, power, open_bracket = ONE, start, 1, False
    for number in range(MAX_FACTORS):
        match = _NAME.match(text, at)
        found = match and _factor(match, touches=number == 0 and start > 0 and text[start - 1].isdigit())
        if not match or found is None:
            break
        unit, end = unit.times(found, power), match.end()
        if open_bracket and text[end : end + 1] == ")":
            end += 1
        join = _JOIN.match(text, end)
        at = end
        if join is None:
            break
        following = _NAME.match(text, join.end())
        if not following or _factor(following, touches=False) is None:
            break
        if join["space"] and not (following["power"] or match["power"]):  # "5 m s^-2", but not "5 ft in"
            break
        power = -1 if join["by"] in ("/", "per") else 1 if not join["space"] else power
        open_bracket, at = bool(join["open"]), join.end()
    else:
        return None, start
    return (unit, at) if unit != ONE else (None, start)


def _factor(match: re.Match[str], *, touches: bool) -> Unit | None:
    name = match["name"]
    unit = named(name)
    if unit is None or (touches and len(name) == 1 and name.isascii() and name.isalpha() and name not in _ATTACHED):
        return None
    raised = (match["raised"] or "").rstrip(".")
    power = 2 if raised in ("sq", "square", "平方") else 3 if raised else 1
    stated = match["exponent"] or match["digit"]
    return ONE.times(unit, power * int(stated) if stated else power)
