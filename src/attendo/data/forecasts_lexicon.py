"""The words of the `forecasts` corpus: places, dates, times of day, phenomena, winds, warnings, verb endings.

Tables only; `forecasts_grammar.py` is the grammar. Keys are the English words. Japanese verbs are stored as
(stem, verb class), the stem holding everything before the ending: ("雨が降", "る5") for 雨が降る.
"""

from typing import NamedTuple


class Endings(NamedTuple):
    """The four endings of a Japanese verb that the grammar uses."""

    plain: str
    conditional: str  # if ...
    past: str
    te: str


VERB_CLASSES = {
    "1": Endings("る", "れば", "た", "て"),
    "る5": Endings("る", "れば", "った", "って"),
    "う5": Endings("う", "えば", "った", "って"),
    "く5": Endings("く", "けば", "いた", "いて"),
    "ぐ5": Endings("ぐ", "げば", "いだ", "いで"),
    "す5": Endings("す", "せば", "した", "して"),
    "ぶ5": Endings("ぶ", "べば", "んだ", "んで"),
    "む5": Endings("む", "めば", "んだ", "んで"),
}


class Phenomenon(NamedTuple):
    """One phenomenon: its state in the Markov chain, the temperatures it fits, and its two languages.

    form: "verb" (it rains), "be" (it is sunny), "there is" or "there are" (there is fog).
    """

    state: str
    coldest: int
    hottest: int
    form: str
    stem: str
    verb_class: str


PHENOMENA = {
    "rain": Phenomenon("rain", 3, 40, "verb", "雨が降", "る5"),
    "drizzle": Phenomenon("rain", 3, 35, "verb", "霧雨が降", "る5"),
    "light rain": Phenomenon("rain", 3, 40, "there is", "小雨が降", "る5"),
    "heavy rain": Phenomenon("rain", 5, 40, "there is", "大雨にな", "る5"),
    "cold rain": Phenomenon("rain", 0, 12, "there is", "冷たい雨が降", "る5"),
    "torrential rain": Phenomenon("rain", 12, 40, "there is", "豪雨にな", "る5"),
    "a downpour": Phenomenon("rain", 8, 40, "there is", "土砂降りにな", "る5"),
    "showers": Phenomenon("rain", 5, 40, "there are", "にわか雨が降", "る5"),
    "thunderstorms": Phenomenon("rain", 10, 40, "there are", "雷雨にな", "る5"),
    "thunder": Phenomenon("rain", 5, 40, "there is", "雷が鳴", "る5"),
    "hail": Phenomenon("rain", 2, 30, "verb", "ひょうが降", "る5"),
    "sleet": Phenomenon("rain", -3, 5, "verb", "みぞれが降", "る5"),
    "snow": Phenomenon("rain", -20, 3, "verb", "雪が降", "る5"),
    "light snow": Phenomenon("rain", -20, 4, "there is", "小雪がちらつ", "く5"),
    "heavy snow": Phenomenon("rain", -20, 2, "there is", "大雪にな", "る5"),
    "wet snow": Phenomenon("rain", -4, 4, "there is", "湿った雪が降", "る5"),
    "powder snow": Phenomenon("rain", -20, 0, "there is", "粉雪が舞", "う5"),
    "snow pellets": Phenomenon("rain", -20, 5, "there are", "あられが降", "る5"),
    "a blizzard": Phenomenon("rain", -20, 0, "there is", "猛吹雪にな", "る5"),
    "cloudy": Phenomenon("cloud", -20, 40, "be", "曇", "る5"),
    "mostly cloudy": Phenomenon("cloud", -20, 40, "be", "雲が多くな", "る5"),
    "overcast": Phenomenon("cloud", -20, 40, "be", "厚い雲に覆われ", "1"),
    "gloomy": Phenomenon("cloud", -20, 40, "be", "どんよりと曇", "る5"),
    "foggy": Phenomenon("cloud", -20, 30, "be", "霧が出", "1"),
    "thick fog": Phenomenon("cloud", -15, 28, "there is", "濃い霧が立ち込め", "1"),
    "misty": Phenomenon("cloud", -5, 32, "be", "もやがかか", "る5"),
    "hazy": Phenomenon("cloud", 5, 35, "be", "かすみがかか", "る5"),
    "low clouds": Phenomenon("cloud", -20, 40, "there are", "低い雲が広が", "る5"),
    "thin clouds": Phenomenon("cloud", -20, 40, "there are", "薄い雲が広が", "る5"),
    "dark clouds": Phenomenon("cloud", -20, 40, "there are", "黒い雲が広が", "る5"),
    "yellow dust": Phenomenon("cloud", 5, 30, "there is", "黄砂が飛", "ぶ5"),
    "chilly": Phenomenon("cloud", 6, 18, "be", "肌寒くな", "る5"),
    "muggy": Phenomenon("cloud", 22, 40, "be", "蒸し暑くな", "る5"),
    "sunny": Phenomenon("sun", -20, 40, "be", "晴れ", "1"),
    "clear": Phenomenon("sun", -20, 40, "be", "晴れ渡", "る5"),
    "cloudless": Phenomenon("sun", -20, 40, "be", "快晴にな", "る5"),
    "blue skies": Phenomenon("sun", -20, 40, "there are", "青空が広が", "る5"),
    "sunny spells": Phenomenon("sun", -20, 40, "there are", "晴れ間が広が", "る5"),
    "sunshine": Phenomenon("sun", -20, 35, "there is", "日が差", "す5"),
    "strong sunshine": Phenomenon("sun", 20, 40, "there is", "強い日差しが照りつけ", "1"),
    "dry": Phenomenon("sun", -10, 35, "be", "空気が乾", "く5"),
    "sweltering": Phenomenon("sun", 33, 40, "be", "猛暑にな", "る5"),
    "hot": Phenomenon("sun", 26, 40, "be", "暑くな", "る5"),
    "warm": Phenomenon("sun", 14, 26, "be", "暖かくな", "る5"),
    "pleasant": Phenomenon("sun", 15, 27, "be", "過ごしやすくな", "る5"),
    "cool": Phenomenon("sun", 12, 24, "be", "涼しくな", "る5"),
    "mild": Phenomenon("sun", -5, 12, "be", "寒さが和ら", "ぐ5"),
    "frosty": Phenomenon("sun", -12, 6, "be", "霜が降り", "1"),
    "cold": Phenomenon("sun", -20, 9, "be", "寒くな", "る5"),
    "freezing cold": Phenomenon("sun", -20, 1, "be", "厳しく冷え込", "む5"),
}


ONLY_BY_DAY = frozenset(
    ("sunny", "blue skies", "sunny spells", "sunshine", "strong sunshine", "sweltering", "yellow dust")
)


class Notice(NamedTuple):
    """An official warning: the weather state and the temperatures it goes with, and its Japanese name."""

    state: str
    coldest: int
    hottest: int
    japanese: str


WARNINGS = {
    "heavy rain warning": Notice("rain", 4, 40, "大雨警報"),
    "flood warning": Notice("rain", 4, 40, "洪水警報"),
    "landslide alert": Notice("rain", 4, 40, "土砂災害警戒情報"),
    "thunderstorm advisory": Notice("rain", 4, 40, "雷注意報"),
    "heavy snow warning": Notice("rain", -20, 3, "大雪警報"),
    "avalanche advisory": Notice("rain", -20, 8, "なだれ注意報"),
    "snowstorm warning": Notice("rain", -20, 3, "暴風雪警報"),
    "icing advisory": Notice("rain", -20, 3, "着氷注意報"),
    "dense fog advisory": Notice("cloud", -20, 40, "濃霧注意報"),
    "strong wind advisory": Notice("cloud", -20, 40, "強風注意報"),
    "storm warning": Notice("cloud", -20, 40, "暴風警報"),
    "tornado advisory": Notice("cloud", 8, 40, "竜巻注意情報"),
    "frost advisory": Notice("sun", -20, 12, "霜注意報"),
    "low temperature advisory": Notice("sun", -20, 14, "低温注意報"),
    "dry air advisory": Notice("sun", -20, 40, "乾燥注意報"),
    "heatstroke alert": Notice("sun", 26, 40, "熱中症警戒アラート"),
}


class TimeOfDay(NamedTuple):
    """A time of day, in the order of the day: at that time, from that time on, and in Japanese."""

    at: str
    onward: str
    japanese: str


TIMES = (
    TimeOfDay("at dawn", "from dawn on", "明け方"),
    TimeOfDay("in the morning", "from the morning on", "朝"),
    TimeOfDay("around noon", "from around noon on", "昼頃"),
    TimeOfDay("in the afternoon", "from the afternoon on", "午後"),
    TimeOfDay("in the evening", "from the evening on", "夕方"),
    TimeOfDay("at night", "from nightfall on", "夜"),
    TimeOfDay("late at night", "from late evening on", "夜遅く"),
)

FIRST_TIME_BY_NIGHT = 5  # index into TIMES

_WEEKDAYS = (
    ("Monday", "月曜日"),
    ("Tuesday", "火曜日"),
    ("Wednesday", "水曜日"),
    ("Thursday", "木曜日"),
    ("Friday", "金曜日"),
    ("Saturday", "土曜日"),
    ("Sunday", "日曜日"),
)
_ORDINAL_ENDINGS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}

NAMED_DATES = {
    "today": "今日",
    "tomorrow": "明日",
    "the day after tomorrow": "明後日",
    "this weekend": "週末",
    **{f"on {english}": japanese for english, japanese in _WEEKDAYS},
    **{f"next {english}": f"来週の{japanese}" for english, japanese in _WEEKDAYS},
}
MONTH_DAYS = {f"on the {day}{_ORDINAL_ENDINGS.get(day, 'th')}": f"{day}日" for day in range(1, 32)}
DATES = {**NAMED_DATES, **MONTH_DAYS}

WIND_DIRECTIONS = {
    "north": "北",
    "northeast": "北東",
    "east": "東",
    "southeast": "南東",
    "south": "南",
    "southwest": "南西",
    "west": "西",
    "northwest": "北西",
}
WIND_STRENGTHS = {"light": "弱く", "": "", "strong": "強く", "very strong": "非常に強く"}

WIND_DIRECTION_NAMES = tuple(WIND_DIRECTIONS)
WIND_STRENGTH_NAMES = tuple(WIND_STRENGTHS)

CERTAINTIES = {"will": "でしょう", "may": "かもしれません", "expected": "見込みです"}
CERTAINTY_DRAWS = ("will", "will", "may", "expected")

# The temperatures, in degrees Celsius, in which the weather of a place is imagined.
CLIMATES = {"cold": (-15, 28), "mild": (-8, 40), "warm": (14, 40)}
COLDEST = -20  # the lowest low of any forecast

PLACES: dict[str, tuple[str, str]] = {
    "Sapporo": ("札幌", "cold"),
    "Hakodate": ("函館", "cold"),
    "Asahikawa": ("旭川", "cold"),
    "Kushiro": ("釧路", "cold"),
    "Wakkanai": ("稚内", "cold"),
    "Aomori": ("青森", "cold"),
    "Morioka": ("盛岡", "cold"),
    "Akita": ("秋田", "cold"),
    "Yamagata": ("山形", "cold"),
    "Nagano": ("長野", "cold"),
    "Sendai": ("仙台", "mild"),
    "Fukushima": ("福島", "mild"),
    "Niigata": ("新潟", "mild"),
    "Toyama": ("富山", "mild"),
    "Kanazawa": ("金沢", "mild"),
    "Fukui": ("福井", "mild"),
    "Kofu": ("甲府", "mild"),
    "Utsunomiya": ("宇都宮", "mild"),
    "Mito": ("水戸", "mild"),
    "Chiba": ("千葉", "mild"),
    "Tokyo": ("東京", "mild"),
    "Yokohama": ("横浜", "mild"),
    "Shizuoka": ("静岡", "mild"),
    "Nagoya": ("名古屋", "mild"),
    "Kyoto": ("京都", "mild"),
    "Osaka": ("大阪", "mild"),
    "Kobe": ("神戸", "mild"),
    "Nara": ("奈良", "mild"),
    "Tottori": ("鳥取", "mild"),
    "Matsue": ("松江", "mild"),
    "Okayama": ("岡山", "mild"),
    "Hiroshima": ("広島", "mild"),
    "Takamatsu": ("高松", "mild"),
    "Matsuyama": ("松山", "mild"),
    "Kochi": ("高知", "mild"),
    "Fukuoka": ("福岡", "mild"),
    "Nagasaki": ("長崎", "mild"),
    "Kumamoto": ("熊本", "mild"),
    "Kagoshima": ("鹿児島", "mild"),
    "Naha": ("那覇", "warm"),
    "Moscow": ("モスクワ", "cold"),
    "Helsinki": ("ヘルシンキ", "cold"),
    "Oslo": ("オスロ", "cold"),
    "Stockholm": ("ストックホルム", "cold"),
    "Montreal": ("モントリオール", "cold"),
    "Toronto": ("トロント", "cold"),
    "Chicago": ("シカゴ", "cold"),
    "Anchorage": ("アンカレジ", "cold"),
    "London": ("ロンドン", "mild"),
    "Paris": ("パリ", "mild"),
    "Berlin": ("ベルリン", "mild"),
    "Vienna": ("ウィーン", "mild"),
    "Rome": ("ローマ", "mild"),
    "Madrid": ("マドリード", "mild"),
    "Athens": ("アテネ", "mild"),
    "Istanbul": ("イスタンブール", "mild"),
    "New York": ("ニューヨーク", "mild"),
    "Boston": ("ボストン", "mild"),
    "Beijing": ("北京", "mild"),
    "Shanghai": ("上海", "mild"),
    "Seoul": ("ソウル", "mild"),
    "Melbourne": ("メルボルン", "mild"),
    "Cairo": ("カイロ", "warm"),
    "Bangkok": ("バンコク", "warm"),
    "Singapore": ("シンガポール", "warm"),
    "Jakarta": ("ジャカルタ", "warm"),
    "Manila": ("マニラ", "warm"),
    "Hanoi": ("ハノイ", "warm"),
    "Mumbai": ("ムンバイ", "warm"),
    "Honolulu": ("ホノルル", "warm"),
    "Nairobi": ("ナイロビ", "warm"),
    "Dubai": ("ドバイ", "warm"),
}
