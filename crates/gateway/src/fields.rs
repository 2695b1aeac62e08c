//! Reads JSON objects of clients field by field. What nobody has read at the end is refused: it would be lost in translation.

use serde_json::{Map, Value};

use crate::failure::Failure;

/// Fields of an object that are left to read.
pub struct Fields {
    path: String,
    left: Map<String, Value>,
}

impl Fields {
    pub fn of(value: Value, path: &str) -> Result<Self, Failure> {
        match value {
            Value::Object(left) => Ok(Self { path: path.to_owned(), left }),
            _ => Err(Failure::invalid(format!("{path} is not an object")).about(path)),
        }
    }

    /// The place of a field in the request.
    pub fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is there; null counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "text")),
        }
    }

    pub fn needed_text(&mut self, name: &str) -> Result<String, Failure> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    pub fn whole(&mut self, name: &str) -> Result<Option<u64>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(name, "a whole number")),
        }
    }

    pub fn number(&mut self, name: &str) -> Result<Option<f64>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.wrong(name, "a number")),
        }
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "true or false")),
        }
    }

    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(self.wrong(name, "a list")),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Self>, Failure> {
        let path = self.at(name);
        self.take(name).map(|value| Self::of(value, &path)).transpose()
    }

    /// Fields that don't change what is answered.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.left.remove(*name);
        }
    }

    /// Fails if anything is left.
    pub fn finish(self) -> Result<(), Failure> {
        match self.left.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(self.untranslatable(name)),
        }
    }

    pub fn untranslatable(&self, name: &str) -> Failure {
        let place = self.at(name);
        Failure::invalid(format!(
            "{place} can't be translated for the provider of this model: leave it out, or use a model whose provider speaks your \
             client's own wire"
        ))
        .about(place)
    }

    pub fn missing(&self, name: &str) -> Failure {
        let place = self.at(name);
        Failure::invalid(format!("{place} is missing")).about(place)
    }

    fn wrong(&self, name: &str, expected: &str) -> Failure {
        let place = self.at(name);
        Failure::invalid(format!("{place} is not {expected}")).about(place)
    }
}
