//! Schemas of JSON values: the arguments of tools, and the form of an agent's answer.
//!
//! A subset of JSON Schema 2020-12. A keyword that would be ignored could not be relied on, so a schema with one that
//! isn't known here is refused; only annotations (`title`, `description` and the like) have no meaning. It does no IO:
//! `$ref` leads only into the schema itself.
//!
//! INVARIANT: checking a value ends after a bounded number of steps, whatever the schema refers to.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum size of a schema, in bytes of its JSON text.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Maximum depth of a schema, and of the values that one describes.
const DEPTH_MAX: usize = 64;
/// Maximum number of subschemas that are tried for one value.
const WORK_MAX: usize = 100_000;
/// Maximum length of a part of a value that a complaint quotes, in characters.
const QUOTED_MAX: usize = 60;

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
        examine(&value, &value, "", 0)?;
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
        let checked = checking.value(&self.0, value, "", 0);
        // What wasn't looked at doesn't fit, even where not fitting is what a schema wants.
        if checking.left == 0 { Err(too_large("")) } else { checked }
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
fn examine(root: &Value, schema: &Value, at: &str, depth: usize) -> Result<(), SchemaError> {
    if depth > DEPTH_MAX {
        return Err(invalid(at, format!("it is more than {DEPTH_MAX} levels deep")));
    }
    let keywords = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return Err(invalid(at, "a schema is an object, true or false")),
    };
    for (keyword, value) in keywords {
        let here = format!("{at}/{keyword}");
        let each = |values: &Value| -> Result<(), SchemaError> {
            let wrong = || invalid(&here, "it is a list of at least one schema");
            let values = values.as_array().filter(|values| !values.is_empty()).ok_or_else(wrong)?;
            (0..).zip(values).try_for_each(|(index, one)| examine(root, one, &format!("{here}/{index}"), depth + 1))
        };
        let named = |values: &Value| -> Result<(), SchemaError> {
            let values = values.as_object().ok_or_else(|| invalid(&here, "it is an object of schemas"))?;
            values.iter().try_for_each(|(name, one)| examine(root, one, &format!("{here}/{name}"), depth + 1))
        };
        match keyword.as_str() {
            "type" => {
                let names = value.as_array().map_or_else(|| vec![value], |names| names.iter().collect());
                let is_known = |name: &&Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                if names.is_empty() || !names.iter().all(is_known) {
                    return Err(invalid(&here, format!("it is one of {}", TYPES.join(", "))));
                }
            }
            "enum" if value.is_array() => {}
            "enum" => return Err(invalid(&here, "it is a list of values")),
            "const" => {}
            "properties" | "$defs" | "definitions" => named(value)?,
            "required" => {
                let are_names = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
                are_names.then_some(()).ok_or_else(|| invalid(&here, "it is a list of names"))?;
            }
            "items" | "additionalProperties" | "not" => examine(root, value, &here, depth + 1)?,
            "anyOf" | "oneOf" | "allOf" => each(value)?,
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                value.as_u64().map(drop).ok_or_else(|| invalid(&here, "it is a whole number of at least 0"))?;
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                value.as_f64().map(drop).ok_or_else(|| invalid(&here, "it is a number"))?;
            }
            "uniqueItems" if value.is_boolean() => {}
            "uniqueItems" => return Err(invalid(&here, "it is true or false")),
            "$ref" => {
                let target = value.as_str().and_then(|text| text.strip_prefix('#'));
                target.and_then(|pointer| root.pointer(pointer)).map(drop).ok_or_else(|| {
                    invalid(&here, format!("{value} leads nowhere: use \"#/$defs/NAME\" of this schema"))
                })?;
            }
            known if ANNOTATIONS.contains(&known) => {}
            unknown => return Err(invalid(at, format!("the keyword {unknown:?} is not supported"))),
        }
    }
    Ok(())
}

fn invalid(at: &str, problem: impl Into<String>) -> SchemaError {
    let at = if at.is_empty() { "the top" } else { at };
    SchemaError { at: at.to_owned(), problem: problem.into() }
}

struct Checking<'a> {
    root: &'a Value,
    left: usize,
}

impl<'a> Checking<'a> {
    fn value(&mut self, schema: &'a Value, value: &Value, at: &str, depth: usize) -> Result<(), Mismatch> {
        let wrong = |problem: String| Err(Mismatch { at: at.to_owned(), problem });
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || depth > 2 * DEPTH_MAX {
            self.left = 0;
            return Err(too_large(at));
        }
        let Value::Object(keywords) = schema else {
            return if schema == &Value::Bool(false) { wrong("nothing is allowed here".to_owned()) } else { Ok(()) };
        };
        if let Some(target) = keywords.get("$ref").and_then(Value::as_str) {
            let root = self.root;
            let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            self.value(target.unwrap_or(&Value::Bool(false)), value, at, depth + 1)?;
        }
        if let Some(expected) = keywords.get("type") {
            let names = expected.as_array().map_or_else(|| vec![expected], |names| names.iter().collect());
            let names: Vec<&str> = names.into_iter().filter_map(Value::as_str).collect();
            if !names.iter().any(|name| is_of(value, name)) {
                return wrong(format!("{} is not of type {}", quoted(value), names.join(" or ")));
            }
        }
        if let Some(Value::Array(allowed)) = keywords.get("enum")
            && !allowed.iter().any(|one| is_same(one, value))
        {
            let allowed: Vec<String> = allowed.iter().map(quoted).collect();
            return wrong(format!("{} is not one of {}", quoted(value), allowed.join(", ")));
        }
        if let Some(expected) = keywords.get("const")
            && !is_same(expected, value)
        {
            return wrong(format!("{} is not {}", quoted(value), quoted(expected)));
        }
        match value {
            Value::Object(object) => self.object(keywords, object, at, depth)?,
            Value::Array(items) => self.items(keywords, items, at, depth)?,
            Value::String(text) => {
                within(keywords, ["minLength", "maxLength"], text.chars().count(), "characters", at)?
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
        at: &str,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let known = keywords.get("properties").and_then(Value::as_object);
        let required = keywords.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        if let Some(missing) = required.into_iter().find(|name| !object.contains_key(*name)) {
            return Err(Mismatch { at: at.to_owned(), problem: format!("{missing:?} is missing") });
        }
        within(keywords, ["minProperties", "maxProperties"], object.len(), "members", at)?;
        for (name, value) in object {
            let below = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
            match (known.and_then(|known| known.get(name)), keywords.get("additionalProperties")) {
                (Some(schema), _) => self.value(schema, value, &below, depth + 1)?,
                (None, Some(Value::Bool(false))) => {
                    let known: Vec<&str> = known.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
                    let problem = format!("{name:?} is not known here; known is {known}");
                    return Err(Mismatch { at: at.to_owned(), problem });
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
        at: &str,
        depth: usize,
    ) -> Result<(), Mismatch> {
        within(keywords, ["minItems", "maxItems"], items.len(), "items", at)?;
        if let Some(schema) = keywords.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.value(schema, item, &format!("{at}/{index}"), depth + 1)?;
            }
        }
        if keywords.get("uniqueItems") == Some(&Value::Bool(true)) {
            let mut texts: Vec<String> = items.iter().map(Value::to_string).collect();
            texts.sort_unstable();
            if let Some(twice) = texts.windows(2).find(|two| two[0] == two[1]) {
                let problem = format!("{} is in it twice", cut(&twice[0]));
                return Err(Mismatch { at: at.to_owned(), problem });
            }
        }
        Ok(())
    }

    fn combined(
        &mut self,
        keywords: &'a Map<String, Value>,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let wrong = |problem: String| Err(Mismatch { at: at.to_owned(), problem });
        let list = |name: &str| keywords.get(name).and_then(Value::as_array).into_iter().flatten();
        for schema in list("allOf") {
            self.value(schema, value, at, depth + 1)?;
        }
        for name in ["anyOf", "oneOf"] {
            let mut tried: Vec<Result<(), Mismatch>> = Vec::new();
            for schema in list(name) {
                tried.push(self.value(schema, value, at, depth + 1));
            }
            let fitting = tried.iter().filter(|tried| tried.is_ok()).count();
            // The variant that was meant is the one whose complaint is deepest.
            let nearest = tried.into_iter().filter_map(Result::err).max_by_key(|mismatch| mismatch.at.len());
            match (fitting, nearest) {
                (0, Some(nearest)) => return Err(nearest),
                (2.., _) if name == "oneOf" => {
                    return wrong(format!("{} fits more than one of the variants", quoted(value)));
                }
                _ => {}
            }
        }
        match keywords.get("not") {
            Some(schema) if self.value(schema, value, at, depth + 1).is_ok() => {
                wrong(format!("{} is not allowed", quoted(value)))
            }
            _ => Ok(()),
        }
    }
}

fn too_large(at: &str) -> Mismatch {
    Mismatch { at: at.to_owned(), problem: "it is too large or too deep to be checked".to_owned() }
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
    at: &str,
) -> Result<(), Mismatch> {
    let count = count as u64;
    let limit = |name: &str| keywords.get(name).and_then(Value::as_u64);
    let problem = match (limit(least), limit(most)) {
        (Some(least), _) if count < least => format!("it has {count} {of}, and at least {least} are needed"),
        (_, Some(most)) if count > most => format!("it has {count} {of}, and at most {most} are allowed"),
        _ => return Ok(()),
    };
    Err(Mismatch { at: at.to_owned(), problem })
}

fn number(keywords: &Map<String, Value>, value: &Value, at: &str) -> Result<(), Mismatch> {
    let given = value.as_f64().unwrap_or_default();
    let limit = |name: &str| keywords.get(name).and_then(|limit| Some((limit.as_f64()?, limit)));
    let problem = match (limit("minimum"), limit("maximum"), limit("exclusiveMinimum"), limit("exclusiveMaximum")) {
        (Some((least, text)), ..) if given < least => format!("{value} is less than {text}"),
        (_, Some((most, text)), ..) if given > most => format!("{value} is more than {text}"),
        (_, _, Some((least, text)), _) if given <= least => format!("{value} is not more than {text}"),
        (.., Some((most, text))) if given >= most => format!("{value} is not less than {text}"),
        _ => return Ok(()),
    };
    Err(Mismatch { at: at.to_owned(), problem })
}

fn quoted(value: &Value) -> String {
    cut(&value.to_string())
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
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
            (json!({"properties": {"a": {"$ref": "https://example.com/s"}}}), "leads nowhere"),
            (json!({"$ref": "#/$defs/none"}), "leads nowhere"),
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
}
