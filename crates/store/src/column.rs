//! Conversions between columns and types. Values are validated before they are written, so a value that doesn't parse
//! is damage and is reported as such; it never becomes a default.

use std::time::Duration;

use rusqlite::types::FromSql;
use rusqlite::{OptionalExtension, Params, Row};
use saggar_domain::{Timestamp, Uptime};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// A text column, parsed by `parse`.
pub(crate) fn parsed<T>(row: &Row<'_>, column: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Error> {
    parse(row.get_ref(column)?.as_str().map_err(|_| damaged(column))?).ok_or_else(|| damaged(column))
}

/// The same for a nullable column.
pub(crate) fn parsed_optional<T>(
    row: &Row<'_>,
    column: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Error> {
    let text = row.get_ref(column)?.as_str_or_null().map_err(|_| damaged(column))?;
    text.map(|text| parse(text).ok_or_else(|| damaged(column))).transpose()
}

/// A column with JSON of one of our types.
pub(crate) fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> Result<T, Error> {
    parsed(row, column, |text| serde_json::from_str(text).ok())
}

/// A column of a type that SQLite converts.
pub(crate) fn plain<T: FromSql>(row: &Row<'_>, column: &str) -> Result<T, Error> {
    row.get(column).map_err(|_| damaged(column))
}

/// A column with a non-negative number.
pub(crate) fn number(row: &Row<'_>, column: &str) -> Result<u64, Error> {
    number_optional(row, column)?.ok_or_else(|| damaged(column))
}

/// The same for a nullable column.
pub(crate) fn number_optional(row: &Row<'_>, column: &str) -> Result<Option<u64>, Error> {
    let number: Option<i64> = plain(row, column)?;
    number.map(|number| u64::try_from(number).map_err(|_| damaged(column))).transpose()
}

pub(crate) fn time(row: &Row<'_>, column: &str) -> Result<Timestamp, Error> {
    number(row, column).map(Timestamp::from_millis)
}

pub(crate) fn time_optional(row: &Row<'_>, column: &str) -> Result<Option<Timestamp>, Error> {
    Ok(number_optional(row, column)?.map(Timestamp::from_millis))
}

pub(crate) fn span_optional(row: &Row<'_>, column: &str) -> Result<Option<Duration>, Error> {
    Ok(number_optional(row, column)?.map(Duration::from_millis))
}

/// The column value of a timestamp: milliseconds.
pub(crate) fn millis(time: Timestamp) -> i64 {
    i64::try_from(time.as_millis()).expect("a timestamp ends with the year 9999")
}

/// The column value of a moment of the lease clock: milliseconds.
pub(crate) fn uptime(moment: Uptime) -> i64 {
    i64::try_from(moment.as_millis()).unwrap_or(i64::MAX)
}

/// The column value of a duration, in milliseconds; saturates.
pub(crate) fn span(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The column value of a count.
pub(crate) fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// JSON of one of our types, for a column.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have only text keys")
}

pub(crate) fn damaged(column: &str) -> Error {
    Error::corrupt(format!("column {column} can't be parsed"))
}

/// The single row, if there is one.
pub(crate) fn one<T>(
    connection: &rusqlite::Connection,
    sql: &'static str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params, |row| Ok(read(row))).optional()?;
    found.transpose()
}

/// All rows. The statement bounds their number.
pub(crate) fn all<T>(
    connection: &rusqlite::Connection,
    sql: &'static str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_and_then(params, read)?;
    rows.collect()
}

/// A number of changed rows, of a statement whose limit is a `u32`.
pub(crate) fn rows(touched: usize) -> u32 {
    u32::try_from(touched).expect("each statement has a limit that is a u32")
}

/// Executes a statement and returns the number of changed rows.
pub(crate) fn execute(
    connection: &rusqlite::Connection,
    sql: &'static str,
    params: impl Params,
) -> Result<usize, Error> {
    Ok(connection.prepare_cached(sql)?.execute(params)?)
}
