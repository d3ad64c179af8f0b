"""The check of a query for Spark: it only reads, and only collections. Spark's parser decides.

The parser returns a plan with unresolved names, and runs nothing. The walk visits each object in
the plan, also those that Spark's own traversals leave out, such as the windows of a query. Kinds of
plans that are not in `READS` are refused, so a statement that a later Spark adds is refused, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.java_gateway import JavaGateway, JavaObject, is_instance_of
from pyspark.sql import SparkSession

from tidelog.errors import UsageError

_READS: Final = """
Aggregate DescribeQueryCommand Distinct Except Filter Generate GlobalLimit Intersect Join
LateralJoin LocalLimit LocalRelation Offset OneRowRelation PipeOperator Pivot Project Repartition
RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot UnresolvedHaving UnresolvedHint
UnresolvedInlineTable UnresolvedQualify UnresolvedRelation UnresolvedSubqueryColumnAliases
UnresolvedTVFAliases UnresolvedTableValuedFunction UnresolvedWith WithWindowDefinition
"""
READS: Final = frozenset(_READS.split())
# Statements that read no rows. DuckDB answers them, so that both engines give the same answer.
DESCRIPTIONS: Final = frozenset({"DescribeRelation", "ShowTables"})
_TABLE_FUNCTIONS: Final = """
collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range
sql_keywords stack variant_explode variant_explode_outer
"""
TABLE_FUNCTIONS: Final = frozenset(_TABLE_FUNCTIONS.split())
# These call any method of Java, or take an option that names a file or a class.
_REFUSED: Final = """
from_avro from_protobuf from_xml java_method reflect schema_of_avro schema_of_xml to_avro
to_protobuf try_reflect
"""
FUNCTIONS_REFUSED: Final = frozenset(_REFUSED.split())
WRITES: Final = (
    "SQL only reads collections: begin the query with SELECT, FROM, WITH, DESCRIBE or SHOW TABLES"
)
FILES: Final = "SQL reads only collections, and opens no file: ingest the file first"
REASONS: Final = {
    "RelationTimeTravel": "all collections of a query are read as of one time: leave out AS OF, "
    "and pass the time to the query",
    "PlanWithUnresolvedIdentifier": "the query must name its collections: leave out IDENTIFIER()",
    "ExpressionWithUnresolvedIdentifier": "the query must name its functions: leave out "
    "IDENTIFIER()",
    "ScriptTransformation": "SQL starts no program: leave out TRANSFORM",
    "NamedStreamingRelation": "a query reads contents, and no stream: leave out STREAM",
}
_KINDS: Final = (
    ("plan", "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"),
    ("list", "scala.collection.Iterable"),  # Before products: a list is both.
    ("product", "scala.Product"),
)
# The walk stops at these values: they name no collection, and a long list has many of them.
_ENDS: Final = frozenset({"Literal", "LocalRelation", "UnresolvedAttribute", "UTF8String"})


@dataclass(frozen=True, slots=True)
class QueryNames:
    """The names of the collections that a query reads; ``describes`` if it reads no rows."""

    names: frozenset[str]
    describes: bool = False


def names_of(spark: SparkSession, query: str) -> QueryNames:
    """Return the names of the collections that a query reads.

    Raises:
        ParseException: Spark's parser refuses the query.
        UsageError: the query does more than read collections.
    """
    if not query.strip():
        raise UsageError("the query is empty: begin it with SELECT or FROM")
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)
    if str(plan.getClass().getSimpleName()) in DESCRIPTIONS:
        return QueryNames(frozenset(), describes=True)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    walk = _Walk(query, gateway)
    walk.visit(plan, frozenset())
    return QueryNames(frozenset(walk.names))


@dataclass(slots=True)
class _Walk:
    """The names that a walk has found, and the kinds of the Java classes that it has met."""

    query: str
    gateway: JavaGateway
    names: set[str] = field(default_factory=set)
    kinds: dict[str, str] = field(default_factory=dict)

    def visit(self, value: Any, ctes: frozenset[str]) -> None:
        """Check a value within a plan; ``ctes`` has the names of the CTEs that it can read."""
        if not isinstance(value, JavaObject):
            return
        kind = self._kind(value)
        name = str(value.getClass().getSimpleName()).rstrip("$")
        self._check(value, name, is_plan=kind == "plan")
        if name == "UnresolvedRelation":
            self._add(list(_items(value.multipartIdentifier())), ctes)
        elif name == "UnresolvedWith":
            self._visit_with(value, ctes)
        elif name not in _ENDS:
            for each in _parts(value, kind):
                self.visit(each, ctes)

    def _kind(self, value: JavaObject) -> str:
        java = str(value.getClass().getName())
        if java not in self.kinds:
            self.kinds[java] = next(
                (kind for kind, base in _KINDS if is_instance_of(self.gateway, value, base)), ""
            )
        return self.kinds[java]

    def _check(self, value: Any, name: str, *, is_plan: bool) -> None:
        if name in REASONS:
            raise UsageError(REASONS[name])
        if is_plan and name not in READS:
            raise UsageError(WRITES, query=self.query)
        if name == "UnresolvedTableValuedFunction":
            *_, function = _items(value.name())
            if function.lower() not in TABLE_FUNCTIONS:
                raise UsageError(FILES, function=function)
        if name == "UnresolvedFunction":
            *_, function = _items(value.nameParts())
            if function.lower() in FUNCTIONS_REFUSED:
                raise UsageError(
                    f"the query cannot call {function}(): it can read files or run code"
                )

    def _add(self, parts: list[str], ctes: frozenset[str]) -> None:
        if len(parts) != 1:
            raise UsageError(
                f"{FILES}; put the name of a collection with a dot in backquotes: `a.b`",
                table=".".join(parts),
            )
        if parts[0].lower() not in ctes:
            self.names.add(parts[0])

    def _visit_with(self, value: Any, ctes: frozenset[str]) -> None:
        for entry in _items(value.cteRelations()):
            name = frozenset({str(entry.productElement(0)).lower()})
            # Without RECURSIVE, a CTE that names itself reads the collection of this name.
            self.visit(entry.productElement(1), ctes | name if value.allowRecursion() else ctes)
            ctes |= name
        self.visit(value.child(), ctes)


def _parts(value: Any, kind: str) -> Iterator[Any]:
    if kind == "list":
        yield from _items(value)
    elif kind:
        for place in range(value.productArity()):
            yield value.productElement(place)


def _items(values: Any) -> Iterator[Any]:
    items = values.iterator()
    while items.hasNext():
        yield items.next()
