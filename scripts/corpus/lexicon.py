"""Lexicon of the generated corpus: English and German one to one, with their irregular forms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A countable noun.

    Attributes:
        english: Singular and plural.
        german: Nominative singular and plural.
        gender: m, f or n.
        weak: Whether it takes -n or -en in the other singular cases (der Junge, den Jungen).
    """

    english: tuple[str, str]
    german: tuple[str, str]
    gender: str
    weak: bool = False


@dataclass(frozen=True)
class Verb:
    """A verb by its principal parts.

    Attributes:
        english: Infinitive, third person present, past, participle.
        german: Infinitive (without prefix), third person present, past, participle (with prefix).
        prefix: Separable prefix, or "".
        auxiliary: Auxiliary of the perfect, haben or sein.
    """

    english: tuple[str, ...]
    german: tuple[str, ...]
    prefix: str = ""
    auxiliary: str = "haben"


def _entries(table: str) -> list[list[str]]:
    """Split a table into its entries and those into words; semicolons separate entries."""
    return [entry.split() for entry in table.split(";")]


def _nouns(table: str) -> tuple[Noun, ...]:
    return tuple(
        Noun((english, englishes), (german, germans), gender, bool(weak))
        for english, englishes, german, germans, gender, *weak in _entries(table)
    )


def _verbs(table: str) -> tuple[Verb, ...]:
    verbs = []
    for words in _entries(table.replace("|", " ")):
        rest = words[8:]
        prefix = next((word for word in rest if word != "sein"), "")
        auxiliary = "sein" if "sein" in rest else "haben"
        verbs.append(Verb(tuple(words[:4]), tuple(words[4:8]), prefix, auxiliary))
    return tuple(verbs)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PERSONS = _nouns("""
man men Mann Männer m; woman women Frau Frauen f; child children Kind Kinder n;
boy boys Junge Jungen m weak; girl girls Mädchen Mädchen n; teacher teachers Lehrer Lehrer m;
doctor doctors Arzt Ärzte m; neighbour neighbours Nachbar Nachbarn m weak;
student students Student Studenten m weak; farmer farmers Bauer Bauern m weak;
cook cooks Koch Köche m; singer singers Sängerin Sängerinnen f; guest guests Gast Gäste m;
brother brothers Bruder Brüder m; sister sisters Schwester Schwestern f;
grandmother grandmothers Großmutter Großmütter f; uncle uncles Onkel Onkel m;
baker bakers Bäcker Bäcker m; painter painters Maler Maler m; judge judges Richter Richter m
""")

ANIMALS = _nouns("""
dog dogs Hund Hunde m; cat cats Katze Katzen f; horse horses Pferd Pferde n;
bird birds Vogel Vögel m; cow cows Kuh Kühe f; goat goats Ziege Ziegen f;
bear bears Bär Bären m weak; mouse mice Maus Mäuse f; lion lions Löwe Löwen m weak;
duck ducks Ente Enten f
""")

FOODS = _nouns("""
apple apples Apfel Äpfel m; pear pears Birne Birnen f; cake cakes Kuchen Kuchen m;
egg eggs Ei Eier n; potato potatoes Kartoffel Kartoffeln f; sausage sausages Wurst Würste f;
tomato tomatoes Tomate Tomaten f; bread_roll bread_rolls Brötchen Brötchen n;
carrot carrots Karotte Karotten f; soup soups Suppe Suppen f
""")

THINGS = _nouns("""
book books Buch Bücher n; letter letters Brief Briefe m; newspaper newspapers Zeitung Zeitungen f;
picture pictures Bild Bilder n; key keys Schlüssel Schlüssel m; bag bags Tasche Taschen f;
chair chairs Stuhl Stühle m; lamp lamps Lampe Lampen f; shirt shirts Hemd Hemden n;
coat coats Mantel Mäntel m; clock clocks Uhr Uhren f; bottle bottles Flasche Flaschen f;
knife knives Messer Messer n; bicycle bicycles Fahrrad Fahrräder n;
suitcase suitcases Koffer Koffer m; map maps Karte Karten f; ball balls Ball Bälle m;
flower flowers Blume Blumen f; ring rings Ring Ringe m;
umbrella umbrellas Regenschirm Regenschirme m
""")

# Places: somebody is in them (in + dative) or goes into them (in + accusative).
PLACES = _nouns("""
house houses Haus Häuser n; garden gardens Garten Gärten m; school schools Schule Schulen f;
kitchen kitchens Küche Küchen f; city cities Stadt Städte f; forest forests Wald Wälder m;
village villages Dorf Dörfer n; room rooms Zimmer Zimmer n; church churches Kirche Kirchen f;
office offices Büro Büros n; library libraries Bibliothek Bibliotheken f;
museum museums Museum Museen n; hotel hotels Hotel Hotels n; park parks Park Parks m;
shop shops Laden Läden m
""")

ADJECTIVES: dict[str, str] = dict(
    entry
    for entry in _entries("""
old alt; young jung; small klein; big groß; new neu; good gut; beautiful schön; red rot;
green grün; blue blau; black schwarz; white weiß; heavy schwer; cheap billig; tired müde;
happy glücklich; friendly freundlich; sad traurig; hungry hungrig; clever klug; quiet ruhig;
famous berühmt; strange seltsam; strong stark; poor arm; rich reich; long lang; short kurz;
warm warm; cold kalt; fresh frisch
""")
)
FOR_LIVING = _words("""
old young small big good beautiful tired happy friendly sad hungry clever quiet famous strange
strong poor rich
""")
FOR_THINGS = _words("""
old small big new beautiful red green blue black white heavy cheap strange long
""")
FOR_FOOD = _words("small big good cheap warm cold fresh")
FOR_PLACES = _words("old small big new beautiful quiet famous strange")

# English infinitive, third person, past, participle | the same in German, then the separable prefix
# and "sein" if the perfect takes it.
WITH_PERSON = _verbs("""
see sees saw seen | sehen sieht sah gesehen;
visit visits visited visited | besuchen besucht besuchte besucht;
know knows knew known | kennen kennt kannte gekannt;
hear hears heard heard | hören hört hörte gehört;
love loves loved loved | lieben liebt liebte geliebt;
greet greets greeted greeted | grüßen grüßt grüßte gegrüßt;
invite invites invited invited | laden lädt lud eingeladen ein;
call calls called called | rufen ruft rief angerufen an;
pick_up picks_up picked_up picked_up | holen holt holte abgeholt ab;
look_for looks_for looked_for looked_for | suchen sucht suchte gesucht;
forget forgets forgot forgotten | vergessen vergisst vergaß vergessen
""")
WITH_THING = _verbs("""
buy buys bought bought | kaufen kauft kaufte gekauft;
sell sells sold sold | verkaufen verkauft verkaufte verkauft;
find finds found found | finden findet fand gefunden;
carry carries carried carried | tragen trägt trug getragen;
lose loses lost lost | verlieren verliert verlor verloren;
need needs needed needed | brauchen braucht brauchte gebraucht;
bring_along brings_along brought_along brought_along | bringen bringt brachte mitgebracht mit;
clear_away clears_away cleared_away cleared_away | räumen räumt räumte weggeräumt weg;
unpack unpacks unpacked unpacked | packen packt packte ausgepackt aus;
draw draws drew drawn | zeichnen zeichnet zeichnete gezeichnet;
steal steals stole stolen | stehlen stiehlt stahl gestohlen
""")
WITH_FOOD = _verbs("""
eat eats ate eaten | essen isst aß gegessen;
cook cooks cooked cooked | kochen kocht kochte gekocht;
try tries tried tried | probieren probiert probierte probiert;
eat_up eats_up ate_up eaten_up | essen isst aß aufgegessen auf
""")
GIVING = _verbs("""
give gives gave given | geben gibt gab gegeben;
show shows showed shown | zeigen zeigt zeigte gezeigt;
send sends sent sent | schicken schickt schickte geschickt;
lend lends lent lent | leihen leiht lieh geliehen;
give_back gives_back gave_back given_back | geben gibt gab zurückgegeben zurück
""")
HELPING = _verbs("""
help helps helped helped | helfen hilft half geholfen;
thank thanks thanked thanked | danken dankt dankte gedankt;
follow follows followed followed | folgen folgt folgte gefolgt sein;
answer answers answered answered | antworten antwortet antwortete geantwortet;
listen_to listens_to listened_to listened_to | hören hört hörte zugehört zu
""")
DOING = _verbs("""
work works worked worked | arbeiten arbeitet arbeitete gearbeitet;
sleep sleeps slept slept | schlafen schläft schlief geschlafen;
sing sings sang sung | singen singt sang gesungen;
wait waits waited waited | warten wartet wartete gewartet;
laugh laughs laughed laughed | lachen lacht lachte gelacht;
dance dances danced danced | tanzen tanzt tanzte getanzt;
run runs ran run | laufen läuft lief gelaufen sein;
fall_asleep falls_asleep fell_asleep fallen_asleep | schlafen schläft schlief eingeschlafen ein sein
""")
GOING = _verbs("""
go goes went gone | gehen geht ging gegangen sein;
run runs ran run | laufen läuft lief gelaufen sein;
return returns returned returned | kehren kehrt kehrte zurückgekehrt zurück sein
""")
# Verbs with an infinitive clause, and verbs with a that-clause.
TRYING = _verbs("""
begin begins began begun | beginnen beginnt begann begonnen;
hope hopes hoped hoped | hoffen hofft hoffte gehofft;
promise promises promised promised | versprechen verspricht versprach versprochen;
decide decides decided decided | beschließen beschließt beschloss beschlossen
""")
SAYING = _verbs("""
say says said said | sagen sagt sagte gesagt;
believe believes believed believed | glauben glaubt glaubte geglaubt;
know knows knew known | wissen weiß wusste gewusst;
hope hopes hoped hoped | hoffen hofft hoffte gehofft
""")
TO_BE = Verb(("be", "is", "was", "been"), ("sein", "ist", "war", "gewesen"), auxiliary="sein")

# Verbs that double their last letter before -ing, and verbs without a progressive.
DOUBLED = _words("run forget")
STATIVE = _words("see know hear love need")

# German first and third person singular, and plural.
MODALS = {
    "can": ("kann", "können"),
    "must": ("muss", "müssen"),
    "should": ("soll", "sollen"),
    "may": ("darf", "dürfen"),
}
TIMES = {
    "present": {"today": "heute", "now": "jetzt", "often": "oft", "always": "immer"},
    "past": {"yesterday": "gestern", "last night": "gestern Abend", "last week": "letzte Woche"},
    "perfect": {},
}
CONJUNCTIONS = {"because": "weil", "although": "obwohl", "if": "wenn", "before": "bevor"}
NAMES = ("Anna", "Peter", "Maria", "Paul", "Clara", "Felix")
COUNTS = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "ten": "zehn"}
PRONOUNS = {  # nominative, accusative, dative
    "I": (("I", "me"), ("ich", "mich", "mir")),
    "he": (("he", "him"), ("er", "ihn", "ihm")),
    "she": (("she", "her"), ("sie", "sie", "ihr")),
    "we": (("we", "us"), ("wir", "uns", "uns")),
    "they": (("they", "them"), ("sie", "sie", "ihnen")),
}
