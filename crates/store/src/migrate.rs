//! Versions of the schema, and the migrations between them.
//!
//! Versions count from 1 in `user_version`. Each migration runs in one transaction with the change of that number, so
//! that a file always has exactly one version. There are no downgrades: a newer file is refused.

use rusqlite::Connection;

use crate::error::Error;

/// Marks a file as ours: "SGAR".
const APPLICATION_ID: i32 = 0x5347_4152;
/// The migration from version n to n + 1 is at index n.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_first.sql"),
    include_str!("../migrations/0002_runs.sql"),
    include_str!("../migrations/0003_children.sql"),
    include_str!("../migrations/0004_trust.sql"),
    include_str!("../migrations/0005_room.sql"),
    include_str!("../migrations/0006_forgetting.sql"),
    include_str!("../migrations/0007_letters.sql"),
    include_str!("../migrations/0008_secrets.sql"),
    include_str!("../migrations/0009_network.sql"),
    include_str!("../migrations/0010_run_files.sql"),
    include_str!("../migrations/0011_reuse.sql"),
    include_str!("../migrations/0012_rest_at_deadline.sql"),
    include_str!("../migrations/0013_sandbox_calls.sql"),
];

#[derive(Debug)]
pub(crate) enum MigrateError {
    Newer { found: u32, known: u32 },
    Foreign,
    Storage(Error),
}

impl<E: Into<Error>> From<E> for MigrateError {
    fn from(error: E) -> Self {
        Self::Storage(error.into())
    }
}

/// Checks that the file is empty, or ours and not too new. Returns its version.
pub(crate) fn check_version(connection: &Connection) -> Result<u32, MigrateError> {
    check_up_to(connection, latest(MIGRATIONS))
}

pub(crate) fn known() -> u32 {
    latest(MIGRATIONS)
}

/// Migrates the file to our version, one step at a time.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), MigrateError> {
    migrate_by(connection, MIGRATIONS)
}

fn check_up_to(connection: &Connection, known: u32) -> Result<u32, MigrateError> {
    let found: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let application: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let objects: u32 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_empty = found == 0 && application == 0 && objects == 0;
    if !is_empty && application != APPLICATION_ID {
        return Err(MigrateError::Foreign);
    }
    if found > known { Err(MigrateError::Newer { found, known }) } else { Ok(found) }
}

fn migrate_by(connection: &mut Connection, migrations: &[&str]) -> Result<(), MigrateError> {
    let found = check_up_to(connection, latest(migrations))?;
    for (version, sql) in (1u32..).zip(migrations).skip(found as usize) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    Ok(())
}

fn latest(migrations: &[&str]) -> u32 {
    u32::try_from(migrations.len()).expect("there are not four billion migrations")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_that_fails_leaves_the_version_before_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        let first = "CREATE TABLE a (x)";
        let broken = "CREATE TABLE b (x); INSERT INTO nowhere VALUES (1)";
        assert!(matches!(migrate_by(&mut connection, &[first, broken]), Err(MigrateError::Storage(_))));
        assert_eq!(check_up_to(&connection, 2).unwrap(), 1);
        let tables: u32 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 1);
        migrate_by(&mut connection, &[first, "CREATE TABLE b (x)"]).unwrap();
        assert_eq!(check_up_to(&connection, 2).unwrap(), 2);
    }
}
