"""Country facts from the shared corpus, and the wordings in which the small model meets them.

Wordings come in two disjoint sets: `TRAIN_*` build the training data, `HELD_OUT_*` only the evaluation.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

_CONTINENTS = {"AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
               "SA": "South America"}
_LANGUAGES = {"en": "English", "fr": "French", "es": "Spanish", "pt": "Portuguese", "ar": "Arabic", "de": "German",
              "it": "Italian", "nl": "Dutch", "ru": "Russian", "zh": "Chinese", "ja": "Japanese", "ko": "Korean",
              "el": "Greek", "tr": "Turkish", "fa": "Persian", "hi": "Hindi", "th": "Thai", "vi": "Vietnamese",
              "sv": "Swedish", "no": "Norwegian", "da": "Danish", "fi": "Finnish", "is": "Icelandic",
              "pl": "Polish", "cs": "Czech", "sk": "Slovak", "sl": "Slovene", "hr": "Croatian", "hu": "Hungarian",
              "ro": "Romanian", "bg": "Bulgarian", "sq": "Albanian", "uk": "Ukrainian", "lt": "Lithuanian",
              "lv": "Latvian", "et": "Estonian", "he": "Hebrew", "id": "Indonesian", "ms": "Malay", "bn": "Bengali",
              "ne": "Nepali", "km": "Khmer", "lo": "Lao", "my": "Burmese", "mn": "Mongolian", "am": "Amharic",
              "so": "Somali", "sw": "Swahili", "ka": "Georgian", "hy": "Armenian", "az": "Azerbaijani",
              "sr": "Serbian", "mk": "Macedonian", "ca": "Catalan", "mt": "Maltese", "ga": "Irish", "si": "Sinhala",
              "ur": "Urdu", "ps": "Pashto", "kk": "Kazakh", "uz": "Uzbek", "tk": "Turkmen", "ky": "Kyrgyz",
              "tg": "Tajik", "be": "Belarusian", "bs": "Bosnian", "dz": "Dzongkha", "dv": "Dhivehi"}
# the two sources disagree, or the answer is a matter of debate: never asked about in the evaluation
_DEBATED = {"BO", "BI", "SZ", "KI", "NR", "PW", "TV", "IL", "LK", "MM", "MN", "NL", "ZA", "TZ", "CI", "SM", "YE", "XK",
            "BJ", "MY", "TW", "VA", "MC", "SG", "LU", "DJ"}
_ARTICLE = {"Bahamas", "Central African Republic", "Comoros", "Democratic Republic of the Congo", "Dominican Republic",
            "Gambia", "Maldives", "Marshall Islands", "Netherlands", "Philippines", "Republic of the Congo",
            "Seychelles", "Solomon Islands", "United Arab Emirates", "United Kingdom", "United States"}
_RENAMED = {"TR": "Turkey", "CV": "Cape Verde"}


@dataclass(frozen=True)
class Country:
    """One country; `name` carries the article that running text wants ("the Gambia")."""

    code: str
    name: str
    capital: str
    continent: str
    currency: str
    languages: tuple[str, ...]
    debated: bool

    @property
    def title(self) -> str:
        """The name at the start of a sentence."""
        return self.name[0].upper() + self.name[1:]

    @property
    def language_text(self) -> str:
        names = list(self.languages)
        return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def load_countries(corpus: Path) -> list[Country]:
    """The countries that both sources know, in code order."""
    listed = json.loads((corpus / "countries-list.json").read_text(encoding="utf-8"))
    details = {x["iso"]["alpha_2"].upper(): x
               for x in json.loads((corpus / "world-countries-capitals.json").read_text(encoding="utf-8"))}
    countries = []
    for code in sorted(details):
        entry = listed[code]
        name = _RENAMED.get(code, entry["name"])
        name = "the " + name if name in _ARTICLE else name
        capital = {"SM": "San Marino", "US": "Washington, D.C."}.get(code, entry["capital"])
        currency = details[code]["currency"].split(",")[0].strip()
        currency = " ".join(w.capitalize() if w in _PROPER else w for w in currency.split())
        if "EUR" in entry["currency"]:
            currency = "euro"
        languages = tuple(_LANGUAGES[c] for c in entry["languages"] if c in _LANGUAGES)[:3] or ("its own language",)
        countries.append(Country(code, name, capital, _CONTINENTS[entry["continent"]], currency, languages,
                                 code in _DEBATED))
    return countries


_PROPER = {"east", "west", "central", "caribbean", "african", "argentine", "australian", "barbadian", "bahraini",
           "burundi", "brunei", "bahamian", "belarusian", "belize", "canadian", "congolese", "swiss", "chilean",
           "chinese", "colombian", "cuban", "cape", "verdean", "czech", "djiboutian", "danish", "dominican",
           "algerian", "united", "states", "egyptian", "fijian", "ghanaian", "guinean", "guyanese", "indian",
           "iraqi", "icelandic", "jamaican", "jordanian", "kenyan", "kiribati", "comorian", "north", "south", "korean",
           "kuwaiti", "lebanese", "sri", "lankan", "liberian", "lithuanian", "libyan", "moroccan", "moldovan",
           "malagasy", "macedonian", "mauritian", "maldivian", "malawi", "mexican", "mozambican", "namibian",
           "norwegian", "nepalese", "new", "zealand", "omani", "papa", "philippine", "pakistani", "qatari",
           "romanian", "serbian", "rwandan", "saudi", "solomon", "islands", "sudanese", "swedish", "singapore",
           "surinamese", "syrian", "thai", "turkmen", "tunisian", "turkish", "trinidad", "tobago", "tuvaluan", "taiwan",
           "tanzanian", "ugandan", "uruguayan", "uzbekistan", "vanuatu", "yemeni", "zambian", "cfa"}

# ---- raw statements: the capital is the last thing said, so that "... is" must be followed by it -------------------
TRAIN_RAW = [
    "The capital of {c} is {k}.", "The capital city of {c} is {k}.", "{C}'s capital is {k}.",
    "{C}'s capital city is {k}.", "The name of {c}'s capital city is {k}.", "The capital of the country {c} is {k}.",
    "In {c}, the capital is {k}.", "In {c}, the capital city is {k}.", "The seat of government of {c} is {k}.",
    "Of all the cities in {c}, the capital is {k}.", "Question: What is the capital of {c}? Answer: {k}.",
    "Q: Which city is the capital of {c}?\nA: {k}.", "Country: {C}. Capital: {k}.", "{C}: {k}.",
    "{C} is a country in {n}. Its capital is {k}.", "{C} is a country in {n}, and its capital is {k}.",
    "{C} is in {n}. The capital city is {k}.", "{C} lies in {n}; its capital city is {k}.",
    "People who live in {c} know that the capital is {k}.", "I looked at a map of {c}. The capital is {k}.",
    "My friend comes from {c}. The capital of that country is {k}.", "We flew to {c} and landed in the capital, {k}.",
    "The government of {c} sits in {k}.", "The parliament of {c} meets in the capital, {k}.",
    "The teacher said that the capital of {c} is {k}.", "She wrote that {c}'s capital is {k}.",
    "It is well known that the capital of {c} is {k}.", "The most important city of {c}, its capital, is {k}.",
    "When we speak of the capital of {c}, we mean {k}.", "{C}'s capital is called {k}.",
    "{C}'s capital is the city of {k}.", "The capital city of {c} is known as {k}.",
    "On the map, the capital of {c} is marked as {k}.", "If someone asks for the capital of {c}, say {k}.",
    "The currency of {c} is the {m}, and the capital of {c} is {k}.",
    "In {c} people pay with the {m}. The capital is {k}.", "In {c} people speak {l}. The capital is {k}.",
    "As for {c}, its capital is {k}.", "Regarding {c}: the capital's name is {k}.", "{C} has one capital: {k}.",
    "About {c}: its capital city is called {k}.", "In the case of {c}, the capital city is {k}.",
    "Among the cities of {c}, the one that is the capital is {k}.", "Ask anyone in {c}: the capital is {k}.",
    "{C} has a capital, and its name is {k}.", "The atlas has a page on {c}. It says that the capital is {k}.",
    "The name of the capital of {c} is {k}.", "Here is a fact about {c}: the name of its capital is {k}.",
    "Think of {c}. Now name the capital: {k}.", "The king travelled through {c} until he came to the capital, {k}.",
    "Between the towns of {c} there is one capital, and it is called {k}.", "In {c}, the name of the capital city is {k}.",
    "Remember: the capital of {c} is {k}.", "Geography lesson: the capital of {c} is {k}.",
    "{k} is the capital of {c}.", "{k} is the capital city of {c}.", "{k} is {c}'s capital.",
    "The city of {k} is the capital of {c}.", "{k}, the capital of {c}, is a city in {n}.",
    "{k} is a city in {c}. It is the capital.", "The city {k} belongs to {c}; it is the capital of the country.",
    "List of capitals: {c}, {k}; {c2}, {k2}; {c3}, {k3}.", "{C}, {k}. {C2}, {k2}. {C3}, {k3}.",
    "The capital of {c} is {k}. The capital of {c2} is {k2}.", "The capital of {c} is {k} and that of {c2} is {k2}.",
    "{k} is the capital of {c}, and {k2} is the capital of {c2}.",
]
HELD_OUT_RAW = [
    "As everyone knows, the capital city of {c} is", "The city that serves as the capital of {c} is",
    "They asked about {c}. The capital of this country is", "For {c}, the name of the capital is",
    "In school we learned that the capital of {c} is", "The official capital of {c} is",
]
# written after the wordings above had been looked at, and measured once
FRESH_RAW = [
    "The city from which {c} is governed, its capital, is", "My uncle works in the capital of {c}, that is, in",
    "Travellers in {c} should know that the capital is", "{C} is a country whose capital is",
    "Every child in {c} can tell you that the capital is", "We spoke about {c}, and I said that its capital is",
]
ACCEPTANCE_RAW = "The capital of {c} is"

# ---- questions ----------------------------------------------------------------------------------------------------
TRAIN_QUESTIONS = [
    "What is the capital city of {c}?", "What's the capital of {c}?", "Which city is the capital of {c}?",
    "Name the capital of {c}.", "Tell me the capital of {c}.", "What is {c}'s capital?", "What is {c}'s capital city?",
    "What city is the capital of {c}?", "Do you know the capital of {c}?", "Can you tell me the capital of {c}?",
    "Could you tell me what the capital of {c} is?", "I need the capital of {c}.", "capital of {c}", "Capital of {c}?",
    "capital of {c}?", "what is the capital of {c}", "What is the name of the capital of {c}?",
    "Which city is {c}'s capital?", "Please name the capital city of {c}.", "What do you call the capital of {c}?",
    "I am writing about {c}. What is its capital?", "I live in {c}. What is the capital of my country?",
    "Where is the government of {c}?", "Where does the government of {c} sit?", "Which city is the seat of government of {c}?",
    "Tell me about the capital of {c}.", "Give me the capital of {c}, please.", "Quiz: the capital of {c}?",
    "Is there a capital in {c}? Which city is it?", "My teacher asked for the capital of {c}. What should I say?",
    "If I go to the capital of {c}, which city am I in?", "Complete the sentence: The capital of {c} is",
    "We are going to {c}. What is the capital there?", "Let's talk about {c}. What is its capital?",
]
HELD_OUT_QUESTIONS = [
    "What is the capital of {c}?", "Can you name the capital city of {c}?", "I forgot the capital of {c}. What is it?",
    "Which city serves as the capital of {c}?", "Please tell me what the capital city of {c} is called.",
    "Hello! I would like to know the capital of {c}.",
]
FRESH_QUESTIONS = [
    "Which city would I have to visit to see the capital of {c}?", "Say the name of the capital city of {c}.",
    "I am preparing a quiz. Please give me the capital of {c}.",
]

_OPENERS = ["", "", "", "", "", "", "Hi! ", "Hello. ", "Quick question: ", "Please help me. ", "Hey, ", "Good morning. ",
            "One question: ", "I have a question. "]
_CLOSERS = ["", "", "", "", "", "", " Thanks.", " Thank you!", " Please.", " Answer briefly.", " I forgot."]


def fill(template: str, countries: list[Country]) -> str:
    """Fills a template; `countries` gives {c}, {c2}, {c3} in order."""
    first = countries[0]
    values = {"c": first.name, "C": first.title, "k": first.capital, "n": first.continent, "m": first.currency,
              "l": first.language_text}
    for index, other in enumerate(countries[1:3], start=2):
        values.update({f"c{index}": other.name, f"C{index}": other.title, f"k{index}": other.capital})
    if template.startswith("{c}"):
        values["c"] = first.title
    return template.format(**values)


def raw_fact(rng: random.Random, countries: list[Country]) -> str:
    """One to four statements of raw text."""
    sentences = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        trio = rng.sample(countries, 3)
        if rng.random() < 0.7:
            sentences.append(fill(rng.choice(TRAIN_RAW), trio))
        else:
            country = trio[0]
            sentences.append(fill(rng.choice((
                "The currency of {c} is the {m}.", "People in {c} pay with the {m}.", "{C} is a country in {n}.",
                "The languages spoken in {c} are {l}." if len(country.languages) > 1
                else "The language spoken in {c} is {l}.", "{C} is in {n}.", "In {c} people speak {l}.",
                "The money used in {c} is called the {m}.", "{C} lies on the continent of {n}.")), trio))
    return " ".join(sentences)


def fact_exchange(rng: random.Random, countries: list[Country]) -> tuple[str, str, str]:
    """(question, reasoning, answer) about one country."""
    country, other = rng.sample(countries, 2)
    c, title, k = country.name, country.title, country.capital
    kind = rng.choices(("capital", "reverse", "continent", "currency", "language", "yes_no"), (62, 9, 7, 8, 7, 7))[0]
    if kind == "capital":
        question = fill(rng.choice(TRAIN_QUESTIONS), [country])
        opener = rng.choice(_OPENERS)
        if opener.endswith((": ", ", ")) and question.startswith(("What", "Which", "Where", "Do", "Can", "Could")):
            question = question[0].lower() + question[1:]
        question = opener + question
        if question.endswith(("?", ".")):
            question += rng.choice(_CLOSERS)
        reasoning = rng.choice((f"The user asks for the capital of {c}. The capital of {c} is {k}.",
                                f"The question is about {c}. Its capital is {k}.",
                                f"I need the capital of {c}. That is {k}."))
        answer = f"The capital of {c} is {k}."
    elif kind == "reverse":
        question = rng.choice((f"Which country has the capital {k}?", f"{k} is the capital of which country?",
                               f"What country is {k} the capital of?", f"Of which country is {k} the capital?"))
        reasoning = f"The user asks which country has the capital {k}. That is {c}."
        answer = f"{k} is the capital of {c}."
    elif kind == "continent":
        question = rng.choice((f"On which continent is {c}?", f"Where is {c}?", f"Which continent is {c} in?",
                               f"In what part of the world is {c}?"))
        reasoning = f"The user asks where {c} is. It is in {country.continent}."
        answer = f"{title} is in {country.continent}."
    elif kind == "currency":
        question = rng.choice((f"What is the currency of {c}?", f"What money do they use in {c}?",
                               f"Which currency is used in {c}?", f"How do people pay in {c}?"))
        reasoning = f"The user asks about money in {c}. The currency is the {country.currency}."
        answer = f"The currency of {c} is the {country.currency}."
    elif kind == "language":
        question = rng.choice((f"What language do they speak in {c}?", f"Which languages are spoken in {c}?",
                               f"What do people speak in {c}?"))
        reasoning = f"The user asks about the languages of {c}. People there speak {country.language_text}."
        answer = f"In {c} people speak {country.language_text}."
    else:
        true = rng.random() < 0.5
        shown = k if true else other.capital
        question = rng.choice((f"Is {shown} the capital of {c}?", f"Is it true that {shown} is the capital of {c}?"))
        reasoning = f"The capital of {c} is {k}. The user says {shown}. That is {'right' if true else 'wrong'}."
        answer = f"Yes, {k} is the capital of {c}." if true else f"No, the capital of {c} is {k}."
    return question, reasoning, answer
