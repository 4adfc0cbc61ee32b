"""JSON texts, good, strange and bad, for whoever has to read them as somebody else does."""

from __future__ import annotations

import json
import random
from typing import Any

FRAGMENTS = """
null true false 0 -0 1 -1 7 127 128 200 255 256 -128 -129 32767 32768 -32769 2147483647 2147483648
-2147483649 9223372036854775807 9223372036854775808 -9223372036854775809 12345678901234567890123
99999999999999999999999999999999999999 100000000000000000000000000000000000000
0.0 -0.0 1.0 1.5 -2.25 1e3 1E3 1e+3 1e-3 1e308 1e309 -1e309 1e-400 -1e-400 3.4028236e38 1e39 0.1
16777217 0.30000001192092896 1.00000017881393432617187499 123456.785 123456.784 99999999.994
99999999.995 99999999.99 1.005 0.004 0.005 -0.005 1e2000 1e-2000
NaN Infinity -Infinity +Infinity -INF +INF INF nan +1 .5 1. -.5 01 -01 00 1e 1e+ - 0x10 1_000 1f
tru
trueX True None undefined ' " '' 'it' 'say "hi"' '\\'' "\\'" "a'b" "" " " "x" "1" "1.5" "-1"
"true"
"null" "NaN" "Infinity" "+Infinity" "-Infinity" "INF" "+INF" "-INF" "nan" "1,000" "1,5" " 1" "1 "
"+1" ".5" "1." "1e3" "1E+3" "0x10" "1_000" "NaN " "123456.785"
"é" "\\u00e9" "\\ud83d\\ude00" "\\ud800" "\\udc00" "\\ude00\\ud83d" "\\u0000" "\\u12" "\\x" "\\/"
"\\"
"a\\nb" "tab\there" "\\t" "\\"q\\"" "😀" "\u2028" "\u007f"
"YQ==" "YWI=" "YWJj" "YWJjZA==" "YWJj ZA==" " YWJj" "YWJj " "YQ" "Y" "YQ=" "Y===" "=" "YQ==YQ=="
"Y Q="
"YR==" "-_-_" "+/+/" "YW\\u004aj" "\\/\\/\\/\\/" 'YQ==' 'YQ' "YWJj\\n" "!!!!"
"2020-01-02" "2020-1-2" "2020-02-30" "2020-13-01" "2020" "2020-01" "20200102" "02020-01-02"
"+2020-01-02"
"-2020-01-02" "0000-01-01" "0001-01-01" "9999-12-31" "12345-01-01" "123456-01-01" "1234567-01-01"
"2020-01-02T" "2020-01-02 " " 2020-01-02" "2020-01-02x" "2020-01-02 x" "2020-01-02T03"
"2020-01-02 03"
"2020-01-02T03:04" "2020-01-02T03:04:05" "2020-01-02 03:04:05" "2020-01-02T03:04:05Z"
"2020-01-02t03:04:05z" "2020-01-02T3:4:5" "2020-01-02T03:04:05.1" "2020-01-02T03:04:05.123456"
"2020-01-02T03:04:05.1234567Z" "2020-01-02T03:04:05.123456789" "2020-01-02T03:04:05."
"2020-01-02T03:04:05.Z" "2020-01-02T03:04:05,5" "2020-01-02T24:00:00" "2020-01-02T23:59:60"
"2020-01-02T03:04:05+01:00" "2020-01-02T03:04:05.5-08:30" "2020-01-02T03:04:05+01"
"2020-01-02T03:04:05+1"
"2020-01-02T03:04:05+0100" "2020-01-02T03:04:05+1:00" "2020-01-02T03:04:05+01:0"
"2020-01-02T03:04:05+18:00"
"2020-01-02T03:04:05+17:59" "2020-01-02T03:04:05+18:01" "2020-01-02T03:04:05-00:00"
"2020-01-02T03:04:05 UTC"
"2020-01-02T03:04:05+01:02:03" "2020-01-02T03:04:05+010203" "2020-01-02T03:04:05+01:0203"
"2020-01-02T03:04:05+0102:03" "2020-01-02T03:04:05+123"
"2020-01-02T03:04:05 Europe/Berlin" "2020-07-02T03:04:05[Europe/Berlin]"
"2020-07-02T03:04:05Europe/Berlin"
"2020-03-29T02:30:00 Europe/Berlin" "2020-10-25T02:30:00 Europe/Berlin" "2020-01-02T03:04:05 CET"
"2020-01-02T03:04:05 PST" "2020-01-02T03:04:05 EST" "2020-01-02T03:04:05 XYZ"
"2020-01-02T03:04:05GMT"
"2020-01-02T03:04:05GMT+2" "2020-01-02T03:04:05UTC+02:00" "2020-01-02T03:04:05UT-1"
"2020-01-02 GMT"
"2020-01-02T03:04Z" "2020-01-02T03Z" "2020-01-02Z" "2020-01-02+01:00" "1700000000" "1700000000000"
"123" "-5" "+5" "12345678" "-12345678" "123456789012" "02/01/2020" "Jan 2 2020" "20-01-02"
"2020/01/02"
"294247-01-10T04:00:54.775807Z" "294247-01-10T04:00:54.775808Z" "300000-01-01T00:00:00Z"
"-290308-12-21T19:59:05.224192Z" "-290308-12-21T19:59:05.224191Z"
"1500-01-01T00:00:00 Europe/Berlin"
"1582-10-10" "1582-10-10T00:00:00" "2020-02-29" "2019-02-29" "1900-02-29"
[] [1] [1,2] [1,null] [null] [1,"x"] ["x",1] [1,"x",2] [1.0] [1,2147483648] [true] [[1],[2]]
[[1,"x"],[2]]
[[]] [[1],null,[]] [{}] [{"i":1}] [{"i":"x"},{"i":2}] [{"i":1,"y":"2020-01-02"},{"y":"no"}]
[1,{"i":2},3]
[1,{"i":2,"s":"q"}] ["2020-01-02"] [1,] [,1] [1 2] [1}] [01] [1,01] [tru] [1,tru] [1,x] ["a\tb"]
[{"i":01}]
{} {"i":1} {"i":1,"s":"x"} {"i":"x","s":"y"} {"i":null} {"i":1,"i":2} {"i":"x","i":2}
{"i":2,"i":"x"}
{"i":1,"i":null} {"s":{"a":[1,2]}} {"s":[1, 2 ,3]} {"o":{"d":1.5}} {"o":{"d":"x"},"i":3}
{"o":5,"i":3}
{"I":1} {"x":1} {"k":"v"} {"k":1,"k":2} {"k":1,"j":"x"} {"k":"x","j":1} {"k":{"i":1}}
{"k":{"i":"x"}}
{"k":{"i":"x"},"j":5,"h":{"i":4}} {"":1} {'i':1} {i:1} {"i":1,} {,} {"i"} {"i":} {"i" 1}
{"\\u0069":4}
{"s":"x"} {"i" : 1 , "s" :\t"x" } { "a" : [ 1 , { "b" : null } ] } [ 1 , "a b" ] {"s": {"t": 'u'}}
{"s":/*c*/1} {"d":1,"i":"bad","s":"s","l":3} [[[[]]]] {"i":[{"i":1}]} {"b":true,"i":2}
"""

WHOLE = r"""
{} | { } | {"i":1} | {"i":1 | {"i":1}} | {"i":1}{"i":2} | {"i":1} x | {"i":1},{"i":2} | {"i":1}]
{"i":1,"s":"x"} | {"i":1 "s":"x"} | {"i":1,,"s":"x"} | {"i":1,} | {,"i":1} | {"i"} | {"i":}
{"i":1;}
{"i":1,"l":"x","s":"ok"} | {"i":"x","l":2,"s":"ok"} | {"i":1,"unknown":{"i":5},"l":2}
{"i":1,"unknown":[{"i":5}],"l":2} | {"unknown":tru,"i":1} | {"unknown":"a\qb","i":1}
{"i":1,"unknown":01}
{"i":1,"i":2} | {"i":"x","i":2} | {"i":1,"i":"x"} | {"i":1,"i":null} | {"I":1} | {"i ":1}
{" i":1}
{'i':1} | {'i':1,'s':'x'} | {i:1} | {"i":1/*c*/} | /*c*/{"i":1} | {"i":1} //c | #c {"i":1}
{"i":1 #c
{"s":"unclosed | {"s":"a","i":1,"d":"unclosed | {"s":"a\ | {"s":"a\u12 | {"s | { | {"s":{"a":1
{"s":[1,2
null | true | 1 | "x" | "{}" | x | NaN | -1.5e3 | 01 | {"a":[1,"x",2],"i":1,"s":"y"} | tru | nulls
{"a":[1,"x",{"i":5}],"s":"y"} | {"a":[1,[{"i":5}]],"s":"y"} | {"aa":[[1,"x"],[2]],"i":7,"s":"y"}
{"aa":[[1,{"i":9}],[2]],"s":"y"} | {"m":{"k":"x","i":9},"s":"y"}
{"m":{"k":{"i":9},"j":1},"s":"y"}
{"m":{"k":"x"},"i":3} | {"mo":{"k":5,"j":{"i":1}},"i":3} | {"o":{"i":"x","s":"z"},"i":3,"s":"y"}
{"ao":[{"i":1},{"i":"x"},5],"i":3} | {"ao":[{"i":1},{"i":"x"}],"i":3} | {"a":[1,01],"i":2}
{"a":[1,tru],"i":2}
{"a":[1,],"i":2} | {"i":2,"a":[1,]} | {"i":2,"a":[1} | {"a":[1]],"i":2} | {"x":"Y","i":1}
{"x":"YQ","i":1}
{"x":"not base64!","i":1} | {"x":"Y","i":1,"s":"t"} | {"x":"YQ=x","i":1} | {"i":1,"x":"Y"}
{"x":'Y',"i":1}
{"s":"\"","i":1} | {"s":"\\","i":1} | {"s":"\\\"","i":1} | {"s":"}{","i":1}
{"s":{"a":"}"},"i":1}
{"i":1,"_corrupt_record":"mine"} | {"_corrupt_record":5,"i":"x"} | {"s":1,"d":1,"f":1,"c":1,"k":1}
{"d":NaN,"f":-INF,"i":1} | {"d":NaN,"i":NaN} | {"d":"NaN","f":"-INF","i":1} | {"c":NaN,"i":1}
{"s":NaN,"i":1}
{"s":-INF,"i":1} | {"l":1,"t":1700000000,"n":1700000000,"y":1} | {"t":1.5}
{"t":9223372036854775807}
{"t":-62135596800} | {"t":9223372036854775808} | {"t":true} | {"s":1.50} | {"s":1e5} | {"s":-0}
{"s":[ 1 ]}
{"s": {"b" : [ 1,2 ] } } | {"s":{"a":'x'}} | {"s":{"a":tru}} | {"s":{"a":"\q"},"i":1}
{"s":[1,],"i":1} | {"s":tru,"i":1}
{"\udc00":1,"i":2} | {"\ud83d\ude00":1,"i":2} | {"\ud83d\u0041":1,"i":2} | {'\ud83d':1,"i":2}
{"u":{"\ud83d":1},"i":2}
{"m":{"\ud83d":1},"i":2} | {"m":{"\ud83d\ude00":1},"i":2} | {"s":{"\ud83d":1},"i":2}
{"i":2,"\ud83d":1}
{"a":[nullx,1],"i":1} | {"a":[1,-x],"i":1} | {"a":[1,-Inx],"i":1} | {"a":[-Ix],"i":1}
{"a":[+x],"i":1} | {"a":[+],"i":1} | {"a":[+Inf],"i":1} | {"a":[-],"i":1} | {"i":1,"a":[-]}
{"i":1,"a":[x} | {"i":1,"a":[Nx} | {"i":1,"a":[+1} | {"u":nullé,"i":1} | {"u":true"i":1}
{"i":1,"s":"é","é":2} | {"\u0069":5} | {"s":"\ud83d\ude00"} | {"s":"\ud83d"} | {"\ud83d":1,"i":2}
{"s":"\uD83D\u0041"}
"""


def of_column(name: str) -> list[bytes]:
    """Each fragment as the value of a column."""
    return [f'{{"{name}":{fragment},"z":1}}'.encode() for fragment in fragments()]


def cases() -> list[bytes]:
    """Texts of their own, and fragments as each kind of column."""
    return [*whole_texts(), *(text for name in COLUMNS for text in of_column(name))]


def whole_texts() -> list[bytes]:
    """Texts of their own."""
    found = [text.strip().encode() for line in WHOLE.splitlines() for text in line.split(" | ")]
    found += [
        b"\xef\xbb\xbf" + b'{"i":1}',
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbfnull",
        b'{"i":1,"s":"\xff"}',
        b'{"s":"\xff","i":1}',
        b'{"i":1}\xff',
        b'{"i":1,"u":"\xc3"}',
        b'{"\xff":1,"i":2}',
        b'\xff{"i":1}',
        b'{"i":\xff}',
        b'{"s":"\xc3\x28","i":1}',
        b'{"s":"a\x01b","i":1}',
        b'{"s":"a\nb","i":1}',
        b'{"s":"a\\\nb","i":1}',
        b'{"u":"a\x01b","i":1}',
        b'{"i":\n1\r\n,\t"s":"x"}',
        b'\n{"i":1}\n',
        b'{"i":\x0b1}',
        b'{"i":\x0c1}',
        b'{"i":1\x00}',
        b'{"i":\xc2\xa01}',
        b'{"u":' + b"[" * 500 + b"]" * 500 + b',"i":1}',
        b'{"u":' + b"[" * 999 + b"]" * 999 + b',"i":1}',
        b'{"u":' + b"[" * 1000 + b"]" * 1000 + b',"i":1}',
        b'{"i":1,"s":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"u":' + b'{"a":' * 1200 + b"1" + b"}" * 1200 + b',"i":1}',
        b'{"i":1,"u":' + b"9" * 1000 + b"}",
        b'{"i":1,"u":' + b"9" * 1001 + b"}",
        b'{"i":1,"u":-' + b"9" * 1000 + b"}",
        b'{"i":1,"d":0.' + b"1" * 999 + b"}",
        b'{"i":1,"d":0.' + b"1" * 1000 + b"}",
        b'{"i":1,"s":"' + b"9" * 5000 + b'"}',
        b'{"i":1,"' + b"n" * 50_000 + b'":2}',
        b'{"i":1,"' + b"n" * 50_001 + b'":2}',
        b'{"k":' + b"1" * 38 + b".5}",
        b'{"k":' + b"9" * 38 + b".5}",
    ]
    return [text for text in found if text.strip()]


COLUMNS = {  # as Spark's DDL has them
    "b": "boolean",
    "i8": "tinyint",
    "i16": "smallint",
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "s": "string",
    "t": "timestamp",
    "n": "timestamp_ntz",
    "y": "date",
    "x": "binary",
    "c": "decimal(10,2)",
    "k": "decimal(38,0)",
    "a": "array<int>",
    "aa": "array<array<int>>",
    "as": "array<string>",
    "o": "struct<i:int,s:string,o:struct<d:double>>",
    "ao": "array<struct<i:int,y:date>>",
    "m": "map<string,int>",
    "mo": "map<string,struct<i:int>>",
}


def schema_of(columns: str) -> Any:
    """The Spark schema that a list of columns describes; Spark's own parser needs a Spark."""
    from pyspark.sql import types as T

    words = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}

    def kind(text: str) -> Any:
        name, _, inner = text.strip().removesuffix(">").partition("<")
        if name == "array":
            return T.ArrayType(kind(inner))
        if name == "map":
            return T.MapType(*(kind(part) for part in _outside(inner, ",")))
        if name == "struct":
            parts = (_outside(part, ":") for part in _outside(inner, ","))
            return T.StructType([T.StructField(field, kind(of)) for field, of in parts])
        return T._parse_datatype_json_value(words.get(name, name))

    fields = (part.strip().split(" ", 1) for part in _outside(columns, ","))
    return T.StructType([T.StructField(name.strip("`"), kind(of)) for name, of in fields])


def _outside(text: str, mark: str) -> list[str]:
    """The parts of a text between marks that are outside of all brackets."""
    found, depth = [""], 0
    for c in text:
        depth += (c in "<(") - (c in ">)")
        if c == mark and not depth:
            found.append("")
        else:
            found[-1] += c
    return found if mark != ":" else [found[0], mark.join(found[1:])]


def shown(table: Any) -> list[dict[str, str]]:
    """Rows in a form that can be compared, however far their times are, and with NaN."""
    columns = {name: _shown(table[name]) for name in table.column_names}
    return [
        {name: cell for name, cell in zip(columns, row, strict=True) if cell != "None"}
        for row in zip(*columns.values(), strict=True)
    ]


def _shown(column: Any) -> list[str]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        bare = pa.struct([("i", pa.int32()), ("y", pa.int32())])
        column = column.cast(pa.list_(bare))
    if pa.types.is_string(kind):  # Spark's may hold bytes that are no UTF-8
        cells = column.cast(pa.binary()).to_pylist()
        return [repr(cell and cell.decode("utf-8", "replace")) for cell in cells]
    return [repr(cell) for cell in column.to_pylist()]


def assert_same(texts: list[bytes], theirs: Any, ours: Any) -> None:
    """Two tables hold the same; else say from which texts they do not."""
    assert theirs.num_rows == ours.num_rows == len(texts)
    wrong = [
        (text, {"theirs": there, "ours": here})
        for text, there, here in zip(texts, shown(theirs), shown(ours), strict=True)
        if there != here
    ]
    assert not wrong


def by_penstock(texts: list[bytes], columns: str, mode: str = "PERMISSIVE") -> Any:
    """A table of what our columns hold."""
    import pyarrow as pa

    from penstock.spark.read.typed import Typed

    reader = Typed(schema_of(columns), mode, "_corrupt_record", "json")
    values = pa.array(texts, pa.binary())
    found, keep = reader.columns(values, None, pa.array(range(len(texts))), "a log")
    table = pa.table(found, schema=reader.arrow_schema)
    table.validate(full=True)
    return table if keep is None else table.filter(keep)


def fragments() -> list[str]:
    """Values and what is none."""
    return [fragment for line in FRAGMENTS.splitlines() for fragment in _split(line)]


def _split(line: str) -> list[str]:
    """Fragments of a line: a space stands between them, unless it is inside of one."""
    found: list[str] = []
    rest = line.strip()
    while rest:
        end = _end(rest)
        found.append(rest[:end])
        rest = rest[end:].lstrip(" ")
    return found


def _end(text: str) -> int:
    """Where the first fragment ends: at a space outside of quotes and brackets."""
    depth, quote, at = 0, "", 0
    while at < len(text):
        c = text[at]
        if quote:
            if c == "\\":
                at += 1
            elif c == quote:
                quote = ""
        elif c in "\"'" and text[at : at + 2].strip() not in ("'", '"'):
            quote = c
        elif c in "[{":
            depth += 1
        elif c in "]}":
            depth -= 1
        elif c == " " and depth <= 0:
            return at
        at += 1
    return len(text)


_FRAGMENTS = fragments()


def made(count: int, seed: int) -> list[bytes]:
    """Texts that nobody thought of: objects of any columns, some of them spoilt."""
    rng = random.Random(seed)
    found: list[bytes] = []
    while len(found) < count:
        parts = []
        for _ in range(rng.randint(0, 6)):
            name = rng.choice([*COLUMNS, "u", "v"])
            parts.append(f"{json.dumps(name)}{rng.choice([':', ' : '])}{_value(rng)}")
        text = "{" + rng.choice([",", " , "]).join(parts) + "}"
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            text = _spoil(rng, text)
        if text.strip() and not text.lstrip().startswith("["):
            found.append(text.encode("utf-8", "surrogatepass"))
    return found


def _value(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_FRAGMENTS)
    return json.dumps(_plain(rng, 0), ensure_ascii=rng.random() < 0.5)


def _plain(rng: random.Random, depth: int) -> Any:
    kinds: list[Any] = [
        None,
        rng.random() < 0.5,
        rng.randint(-300, 300),
        rng.randint(-(1 << 65), 1 << 65),
        rng.uniform(-1e6, 1e6),
        rng.choice(["", "x", "é😀", "2021-03-04", "2021-03-04T05:06:07Z", "12"]),
    ]
    if depth < 3:
        kinds.append([_plain(rng, depth + 1) for _ in range(rng.randint(0, 3))])
        kinds.append(
            {rng.choice("isodky"): _plain(rng, depth + 1) for _ in range(rng.randint(0, 3))}
        )
        kinds.append({"i": rng.randint(0, 9), "s": "t"})
        kinds.append([rng.randint(0, 9) for _ in range(3)])
    return rng.choice(kinds)


def _spoil(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    what = rng.randrange(4)
    if what == 0:
        return text[:at] + text[at + 1 :]
    if what == 1:
        return text[:at] + rng.choice("{}[]\",:'\\ \tx01-.e") + text[at:]
    if what == 2:
        return text[:at]
    other = rng.randrange(len(text) + 1)
    return text[:at] + text[other : other + 5] + text[at:]
