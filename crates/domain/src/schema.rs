//! Schemas of JSON values: the arguments of tools, and the form of an agent's answer.
//!
//! A subset of JSON Schema 2020-12. A keyword that would be ignored could not be relied on, so a schema with one that
//! isn't known here is refused; only annotations (`title`, `description` and the like) have no meaning. It does no IO:
//! `$ref` leads only into the schema itself.
//!
//! INVARIANT: checking a value ends after a bounded amount of work, whatever the schema refers to and however large the
//! value is. Both may be written by strangers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum size of a schema, in bytes of its JSON text.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Maximum depth of a schema, and of the values that one describes.
const DEPTH_MAX: usize = 64;
/// Maximum work of checking one value. A unit is a subschema that is tried, a value that is looked at, or [`UNIT_BYTES`] of a text.
const WORK_MAX: usize = 1_000_000;
/// Bytes of a text that are as much work as a value.
const UNIT_BYTES: usize = 64;
/// Maximum length of a part of a value that a complaint quotes, in characters.
const QUOTED_MAX: usize = 60;
/// Maximum number of names or values that a complaint lists.
const LISTED_MAX: usize = 50;

/// Keywords without an effect.
const ANNOTATIONS: [&str; 11] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
];
const TYPES: [&str; 7] = ["object", "array", "string", "integer", "number", "boolean", "null"];

/// A schema whose keywords are all known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Schema(Value);

/// Why a schema is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schema is invalid at {at}: {problem}")]
pub struct SchemaError {
    /// A JSON pointer, or `the top`.
    pub at: String,
    pub problem: String,
}

/// The first place where a value isn't what its schema says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", if at.is_empty() { String::new() } else { format!("{at}: ") })]
pub struct Mismatch {
    /// A JSON pointer; empty for the whole value.
    pub at: String,
    pub problem: String,
}

impl Schema {
    pub fn new(value: Value) -> Result<Self, SchemaError> {
        let bytes = value.to_string().len();
        if bytes > SCHEMA_BYTES_MAX {
            return Err(invalid("", format!("it has {bytes} bytes, and at most {SCHEMA_BYTES_MAX} are allowed")));
        }
        let mut examining = Examining { root: &value, schemas: BTreeSet::new(), refs: Vec::new() };
        examining.schema(&value, "", 0)?;
        examining.targets()?;
        Ok(Self(value))
    }

    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        let value = serde_json::from_str(text).map_err(|error| invalid("", format!("it is not JSON: {error}")))?;
        Self::new(value)
    }

    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// The names of the properties of an object that it describes.
    pub fn properties(&self) -> impl Iterator<Item = &str> {
        let properties = self.0.get("properties").and_then(Value::as_object);
        properties.into_iter().flat_map(|properties| properties.keys().map(String::as_str))
    }

    pub fn check(&self, value: &Value) -> Result<(), Mismatch> {
        let mut checking = Checking { root: &self.0, left: WORK_MAX };
        let checked = checking.value(&self.0, value, &Place::Top, 0);
        // What wasn't looked at doesn't fit, even where not fitting is what a schema wants.
        if checking.left == 0 { Err(too_large(&Place::Top)) } else { checked }
    }
}

impl TryFrom<Value> for Schema {
    type Error = SchemaError;

    fn try_from(value: Value) -> Result<Self, SchemaError> {
        Self::new(value)
    }
}

impl From<Schema> for Value {
    fn from(schema: Schema) -> Self {
        schema.0
    }
}

/// Refuses what [`Checking`] would not understand.
struct Examining<'a> {
    root: &'a Value,
    /// All subschemas: nothing else in a schema may be referred to, because its keywords were not looked at.
    schemas: BTreeSet<*const Value>,
    /// Where a `$ref` is, and what it says.
    refs: Vec<(String, &'a Value)>,
}

impl<'a> Examining<'a> {
    fn schema(&mut self, schema: &'a Value, at: &str, depth: usize) -> Result<(), SchemaError> {
        if depth > DEPTH_MAX {
            return Err(invalid(at, format!("it is more than {DEPTH_MAX} levels deep")));
        }
        self.schemas.insert(schema);
        let keywords = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(keywords) => keywords,
            _ => return Err(invalid(at, "a schema is an object, true or false")),
        };
        for (keyword, value) in keywords {
            let here = format!("{at}/{keyword}");
            match keyword.as_str() {
                "type" => {
                    let names = value.as_array().map_or_else(|| vec![value], |names| names.iter().collect());
                    let is_known = |name: &&Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                    if names.is_empty() || names.len() > TYPES.len() || !names.iter().all(is_known) {
                        return Err(invalid(&here, format!("it is one of {}", TYPES.join(", "))));
                    }
                }
                "enum" if value.is_array() => {}
                "enum" => return Err(invalid(&here, "it is a list of values")),
                "const" => {}
                "properties" | "$defs" | "definitions" => {
                    let named = value.as_object().ok_or_else(|| invalid(&here, "it is an object of schemas"))?;
                    for (name, one) in named {
                        self.schema(one, &format!("{here}/{name}"), depth + 1)?;
                    }
                }
                "required" => {
                    let are_names = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
                    are_names.then_some(()).ok_or_else(|| invalid(&here, "it is a list of names"))?;
                }
                "items" | "additionalProperties" | "not" => self.schema(value, &here, depth + 1)?,
                "anyOf" | "oneOf" | "allOf" => {
                    let wrong = || invalid(&here, "it is a list of at least one schema");
                    let each = value.as_array().filter(|each| !each.is_empty()).ok_or_else(wrong)?;
                    for (index, one) in each.iter().enumerate() {
                        self.schema(one, &format!("{here}/{index}"), depth + 1)?;
                    }
                }
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                    value.as_u64().map(drop).ok_or_else(|| invalid(&here, "it is a whole number of at least 0"))?;
                }
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                    value.as_f64().map(drop).ok_or_else(|| invalid(&here, "it is a number"))?;
                }
                "uniqueItems" if value.is_boolean() => {}
                "uniqueItems" => return Err(invalid(&here, "it is true or false")),
                "$ref" => self.refs.push((here, value)),
                known if ANNOTATIONS.contains(&known) => {}
                unknown => return Err(invalid(at, format!("the keyword {unknown:?} is not supported"))),
            }
        }
        Ok(())
    }

    fn targets(&self) -> Result<(), SchemaError> {
        for (at, value) in &self.refs {
            let target = value.as_str().and_then(|text| text.strip_prefix('#'));
            let target = target.and_then(|pointer| self.root.pointer(pointer));
            if !target.is_some_and(|target| self.schemas.contains(&std::ptr::from_ref(target))) {
                let problem = format!("{value} leads to no schema: use \"#/$defs/NAME\" of this schema");
                return Err(invalid(at, problem));
            }
        }
        Ok(())
    }
}

fn invalid(at: &str, problem: impl Into<String>) -> SchemaError {
    let at = if at.is_empty() { "the top" } else { at };
    SchemaError { at: at.to_owned(), problem: problem.into() }
}

/// Where a value is. Written down only for a complaint: a path may be long, and most values fit.
enum Place<'a> {
    Top,
    Member(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl Place<'_> {
    /// A JSON pointer, with long names cut.
    fn pointer(&self) -> String {
        match self {
            Self::Top => String::new(),
            Self::Member(above, name) => {
                format!("{}/{}", above.pointer(), cut(name).replace('~', "~0").replace('/', "~1"))
            }
            Self::Item(above, index) => format!("{}/{index}", above.pointer()),
        }
    }

    fn wrong(&self, problem: String) -> Mismatch {
        Mismatch { at: self.pointer(), problem }
    }
}

struct Checking<'a> {
    root: &'a Value,
    left: usize,
}

impl<'a> Checking<'a> {
    /// Before the work is done. An error ends the whole check.
    fn spend(&mut self, units: usize, at: &Place<'_>) -> Result<(), Mismatch> {
        self.left = self.left.saturating_sub(units);
        if self.left == 0 { Err(too_large(at)) } else { Ok(()) }
    }

    fn value(&mut self, schema: &'a Value, value: &Value, at: &Place<'_>, depth: usize) -> Result<(), Mismatch> {
        if depth > 2 * DEPTH_MAX {
            self.left = 0;
        }
        self.spend(1, at)?;
        let Value::Object(keywords) = schema else {
            let is_allowed = schema != &Value::Bool(false);
            return if is_allowed { Ok(()) } else { Err(at.wrong("nothing is allowed here".to_owned())) };
        };
        if let Some(target) = keywords.get("$ref").and_then(Value::as_str) {
            self.spend(target.len() / UNIT_BYTES, at)?;
            let root = self.root;
            let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            self.value(target.unwrap_or(&Value::Bool(false)), value, at, depth + 1)?;
        }
        if let Some(expected) = keywords.get("type") {
            let names = expected.as_array().map_or_else(|| vec![expected], |names| names.iter().collect());
            let names: Vec<&str> = names.into_iter().filter_map(Value::as_str).collect();
            if !names.iter().any(|name| is_of(value, name)) {
                return Err(at.wrong(format!("{} is not of type {}", quoted(value), names.join(" or "))));
            }
        }
        if let Some(Value::Array(allowed)) = keywords.get("enum") {
            self.spend(allowed.iter().map(work_of).sum(), at)?;
            if !allowed.iter().any(|one| is_same(one, value)) {
                let allowed = listed(allowed.iter().map(quoted));
                return Err(at.wrong(format!("{} is not one of {allowed}", quoted(value))));
            }
        }
        if let Some(expected) = keywords.get("const") {
            self.spend(work_of(expected), at)?;
            if !is_same(expected, value) {
                return Err(at.wrong(format!("{} is not {}", quoted(value), quoted(expected))));
            }
        }
        match value {
            Value::Object(object) => self.object(keywords, object, at, depth)?,
            Value::Array(items) => self.items(keywords, items, at, depth)?,
            Value::String(text) => {
                let limits = ["minLength", "maxLength"];
                if limits.iter().any(|limit| keywords.contains_key(*limit)) {
                    self.spend(text.len() / UNIT_BYTES, at)?;
                    within(keywords, limits, text.chars().count(), "characters", at)?;
                }
            }
            Value::Number(_) => number(keywords, value, at)?,
            Value::Null | Value::Bool(_) => {}
        }
        self.combined(keywords, value, at, depth)
    }

    fn object(
        &mut self,
        keywords: &'a Map<String, Value>,
        object: &Map<String, Value>,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let known = keywords.get("properties").and_then(Value::as_object);
        if let Some(Value::Array(required)) = keywords.get("required") {
            self.spend(required.len(), at)?;
            let mut required = required.iter().filter_map(Value::as_str);
            if let Some(missing) = required.find(|name| !object.contains_key(*name)) {
                return Err(at.wrong(format!("{:?} is missing", cut(missing))));
            }
        }
        within(keywords, ["minProperties", "maxProperties"], object.len(), "members", at)?;
        let others = keywords.get("additionalProperties");
        if known.is_none() && others.is_none() {
            return Ok(());
        }
        for (name, value) in object {
            self.spend(1, at)?;
            let below = Place::Member(at, name);
            match (known.and_then(|known| known.get(name)), others) {
                (Some(schema), _) => self.value(schema, value, &below, depth + 1)?,
                (None, Some(Value::Bool(false))) => {
                    let known = known.into_iter().flat_map(Map::keys).map(|name| cut(name));
                    let known = Some(listed(known)).filter(|known| !known.is_empty());
                    let known = known.unwrap_or_else(|| "nothing".to_owned());
                    return Err(at.wrong(format!("{:?} is not known here; known is {known}", cut(name))));
                }
                (None, Some(schema)) => self.value(schema, value, &below, depth + 1)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn items(
        &mut self,
        keywords: &'a Map<String, Value>,
        items: &[Value],
        at: &Place<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        within(keywords, ["minItems", "maxItems"], items.len(), "items", at)?;
        if let Some(schema) = keywords.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.value(schema, item, &Place::Item(at, index), depth + 1)?;
            }
        }
        if keywords.get("uniqueItems") == Some(&Value::Bool(true)) {
            for item in items {
                self.spend(work_of(item), at)?;
            }
            let mut texts: Vec<String> = items.iter().map(Value::to_string).collect();
            texts.sort_unstable();
            if let Some(twice) = texts.windows(2).find(|two| two[0] == two[1]) {
                return Err(at.wrong(format!("{} is in it twice", cut(&twice[0]))));
            }
        }
        Ok(())
    }

    fn combined(
        &mut self,
        keywords: &'a Map<String, Value>,
        value: &Value,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let list = |name: &str| keywords.get(name).and_then(Value::as_array).into_iter().flatten();
        for schema in list("allOf") {
            self.value(schema, value, at, depth + 1)?;
        }
        for name in ["anyOf", "oneOf"] {
            let (mut fitting, mut nearest) = (0, None::<Mismatch>);
            for schema in list(name) {
                match self.value(schema, value, at, depth + 1) {
                    Ok(()) => fitting += 1,
                    Err(ending) if self.left == 0 => return Err(ending),
                    // The variant that was meant is the one whose complaint is deepest.
                    Err(other) if nearest.as_ref().is_some_and(|nearest| nearest.at.len() > other.at.len()) => {}
                    Err(other) => nearest = Some(other),
                }
            }
            match (fitting, nearest) {
                (0, Some(nearest)) => return Err(nearest),
                (2.., _) if name == "oneOf" => {
                    return Err(at.wrong(format!("{} fits more than one of the variants", quoted(value))));
                }
                _ => {}
            }
        }
        match keywords.get("not") {
            Some(schema) if self.value(schema, value, at, depth + 1).is_ok() => {
                Err(at.wrong(format!("{} is not allowed", quoted(value))))
            }
            _ => Ok(()),
        }
    }
}

fn too_large(at: &Place<'_>) -> Mismatch {
    at.wrong("it is too large or too deep to be checked".to_owned())
}

/// How much work it is to look at all of a value.
fn work_of(value: &Value) -> usize {
    let text = |text: &str| text.len() / UNIT_BYTES;
    1 + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(one) => text(one),
        Value::Array(items) => items.iter().map(work_of).sum(),
        Value::Object(members) => members.iter().map(|(name, value)| text(name) + work_of(value)).sum(),
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}

/// Whether two values are equal; 1 and 1.0 are.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(_), Value::Number(_)) => one == other || one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}

fn within(
    keywords: &Map<String, Value>,
    [least, most]: [&str; 2],
    count: usize,
    of: &str,
    at: &Place<'_>,
) -> Result<(), Mismatch> {
    let count = count as u64;
    let limit = |name: &str| keywords.get(name).and_then(Value::as_u64);
    let problem = match (limit(least), limit(most)) {
        (Some(least), _) if count < least => format!("it has {count} {of}, and at least {least} are needed"),
        (_, Some(most)) if count > most => format!("it has {count} {of}, and at most {most} are allowed"),
        _ => return Ok(()),
    };
    Err(at.wrong(problem))
}

fn number(keywords: &Map<String, Value>, value: &Value, at: &Place<'_>) -> Result<(), Mismatch> {
    let given = value.as_f64().unwrap_or_default();
    let limit = |name: &str| keywords.get(name).and_then(|limit| Some((limit.as_f64()?, limit)));
    let problem = match (limit("minimum"), limit("maximum"), limit("exclusiveMinimum"), limit("exclusiveMaximum")) {
        (Some((least, text)), ..) if given < least => format!("{value} is less than {text}"),
        (_, Some((most, text)), ..) if given > most => format!("{value} is more than {text}"),
        (_, _, Some((least, text)), _) if given <= least => format!("{value} is not more than {text}"),
        (.., Some((most, text))) if given >= most => format!("{value} is not less than {text}"),
        _ => return Ok(()),
    };
    Err(at.wrong(problem))
}

/// The beginning of a value, as JSON. No more of it is looked at than is shown.
fn quoted(value: &Value) -> String {
    let mut beginning = String::new();
    begin(value, &mut beginning);
    cut(&beginning)
}

fn begin(value: &Value, out: &mut String) {
    let is_full = |out: &String| out.len() > 4 * QUOTED_MAX;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
        Value::String(text) => {
            let end = text.char_indices().nth(QUOTED_MAX).map_or(text.len(), |(end, _)| end);
            out.push_str(&Value::from(&text[..end]).to_string());
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if is_full(out) {
                    break;
                }
                if index > 0 {
                    out.push(',');
                }
                begin(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (name, value)) in members.iter().enumerate() {
                if is_full(out) {
                    break;
                }
                if index > 0 {
                    out.push(',');
                }
                begin(&Value::from(cut(name)), out);
                out.push(':');
                begin(value, out);
            }
            out.push('}');
        }
    }
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn listed(mut texts: impl Iterator<Item = String>) -> String {
    let mut some: Vec<String> = texts.by_ref().take(LISTED_MAX).collect();
    if texts.next().is_some() {
        some.push("…".to_owned());
    }
    some.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_checked_and_the_first_wrong_place_is_named() {
        let shell = json!({
            "type": "object",
            "properties": {
                "command": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
                "cwd": {"type": "string", "maxLength": 4},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "times": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
                "how": {"enum": ["fast", 1]},
                "tree": {"$ref": "#/$defs/tree"},
                "set": {"type": "array", "uniqueItems": true},
            },
            "required": ["command"],
            "additionalProperties": false,
            "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}, "additionalProperties": false}},
        });
        let schema = Schema::new(shell).unwrap();
        for (value, expected) in [
            (json!({"command": "ls"}), None),
            (json!({"command": ["ls"], "env": {"A": "b"}, "times": 9, "how": 1.0, "cwd": "äöüß"}), None),
            (json!({"command": "ls", "tree": {"left": {"left": {}}}, "set": [1, 2]}), None),
            (json!([]), Some("[] is not of type object")),
            (json!({}), Some("\"command\" is missing")),
            (
                json!({"command": "ls", "comand": 1}),
                Some("\"comand\" is not known here; known is command, cwd, env, how, set, times, tree"),
            ),
            (json!({"command": [1]}), Some("/command/0: 1 is not of type string")),
            (json!({"command": []}), Some("/command: it has 0 items, and at least 1 are needed")),
            (json!({"command": "ls", "cwd": "/work"}), Some("/cwd: it has 5 characters, and at most 4 are allowed")),
            (json!({"command": "ls", "env": {"a/b": 1}}), Some("/env/a~1b: 1 is not of type string")),
            (json!({"command": "ls", "times": 0}), Some("/times: 0 is less than 1")),
            (json!({"command": "ls", "times": 10}), Some("/times: 10 is not less than 10")),
            (json!({"command": "ls", "times": 1.5}), Some("/times: 1.5 is not of type integer")),
            (json!({"command": "ls", "how": "slow"}), Some("/how: \"slow\" is not one of \"fast\", 1")),
            (
                json!({"command": "ls", "tree": {"left": {"up": 1}}}),
                Some("/tree/left: \"up\" is not known here; known is left"),
            ),
            (json!({"command": "ls", "set": [1, 2, 1]}), Some("/set: 1 is in it twice")),
        ] {
            let found = schema.check(&value).err().map(|mismatch| mismatch.to_string());
            assert_eq!(found.as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn a_schema_that_would_not_be_understood_is_refused() {
        for (schema, expected) in [
            (json!({"pattern": "a+"}), "the keyword \"pattern\" is not supported"),
            (json!({"type": "text"}), "at /type: it is one of"),
            (json!({"properties": {"a": {"$ref": "https://example.com/s"}}}), "leads to no schema"),
            (json!({"$ref": "#/$defs/none"}), "leads to no schema"),
            (json!({"anyOf": []}), "a list of at least one schema"),
            (json!({"minLength": -1}), "a whole number"),
            (json!("string"), "a schema is an object"),
        ] {
            let error = Schema::new(schema.clone()).unwrap_err().to_string();
            assert!(error.contains(expected), "{schema}: {error}");
        }
        let deep = (0..100).fold(json!(true), |inner, _| json!({"items": inner}));
        assert!(Schema::new(deep).unwrap_err().to_string().contains("levels deep"));
        let large = json!({"description": "x".repeat(SCHEMA_BYTES_MAX)});
        assert!(Schema::new(large).unwrap_err().to_string().contains("bytes"));
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let endless = Schema::new(json!({"$ref": "#"})).unwrap();
        assert!(endless.check(&json!(1)).unwrap_err().problem.contains("too deep"));
        let wide =
            json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"});
        assert!(Schema::new(wide).unwrap().check(&json!(1)).is_err());
    }

    #[test]
    fn variants_and_their_negation() {
        let one =
            Schema::new(json!({"oneOf": [{"type": "integer"}, {"type": "number"}], "not": {"const": 7}})).unwrap();
        assert!(one.check(&json!(1.5)).is_ok());
        assert!(one.check(&json!(1)).unwrap_err().problem.contains("more than one"));
        let not = Schema::new(json!({"not": {"const": 7}})).unwrap();
        assert!(not.check(&json!(7)).unwrap_err().problem.contains("not allowed"));
    }

    #[test]
    fn what_is_too_deep_to_be_checked_fits_no_negation() {
        let not =
            Schema::new(json!({"not": {"$ref": "#/$defs/all"}, "$defs": {"all": {"items": {"$ref": "#/$defs/all"}}}}));
        let deep = (0..3 * DEPTH_MAX).fold(json!(1), |value, _| json!([value]));
        let mismatch = not.unwrap().check(&deep).unwrap_err();
        assert!(mismatch.problem.contains("too large or too deep"), "{}", mismatch.problem);
    }

    #[test]
    fn what_was_not_examined_as_a_schema_is_not_referred_to() {
        for schema in [
            // `pattern` would be ignored there.
            json!({"$ref": "#/default", "default": {"pattern": "a+"}}),
            json!({"properties": {"pattern": {}}, "$ref": "#/properties"}),
            json!({"$ref": "#/title", "title": "anything"}),
        ] {
            let error = Schema::new(schema.clone()).unwrap_err().to_string();
            assert!(error.contains("leads to no schema"), "{schema}: {error}");
        }
    }

    /// Each of these took minutes: a schema of a few kilobytes, and a value as large as a call's arguments may be.
    #[test]
    fn no_schema_makes_checking_a_large_value_long() {
        let text = "x".repeat(1 << 20);
        let many = |one: Value, count: usize| -> Value { std::iter::repeat_n(one, count).collect() };
        let twice = |inner: Value| json!({"allOf": [inner.clone(), inner]});
        // So many subschemas for the same value, one after the other, by references.
        let doubled = |leaf: Value| {
            let mut defs = serde_json::Map::from_iter([("d0".to_owned(), leaf)]);
            for level in 1..14 {
                let below = json!({"$ref": format!("#/$defs/d{}", level - 1)});
                defs.insert(format!("d{level}"), twice(below));
            }
            json!({"$ref": "#/$defs/d13", "$defs": defs})
        };
        let begun = std::time::Instant::now();
        for (schema, value) in [
            (doubled(json!({"minLength": 1})), json!(text)),
            (doubled(json!({"not": {"type": "number"}})), many(json!(text), 4)),
            (doubled(json!({"anyOf": [{"type": "number"}, {}]})), many(json!(0), 1 << 19)),
            (doubled(json!({"uniqueItems": true})), json!([text, 1])),
            (doubled(json!({"anyOf": [{"enum": many(json!([[[1, 2], 3], 4]), 2000)}, {}]})), json!([[[1, 2], 3], 5])),
            (
                json!({"additionalProperties": {"items": {"minimum": 0}}}),
                json!({(text.as_str()): many(json!(0), 1 << 19)}),
            ),
        ] {
            let schema = Schema::new(schema).unwrap();
            if let Err(mismatch) = schema.check(&value) {
                assert!(mismatch.problem.contains("too large") && mismatch.at.len() < 100, "{mismatch}");
            }
        }
        // A few seconds without optimisation, and minutes without the bound.
        assert!(begun.elapsed().as_secs() < 30, "it took {:?}", begun.elapsed());
        let long = json!({(text.as_str()): 1});
        let strict = Schema::new(json!({"additionalProperties": false})).unwrap();
        let message = strict.check(&long).unwrap_err().to_string();
        assert!(message.len() < 200, "what is quoted is cut");
    }
}
