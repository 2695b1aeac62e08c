//! Holds a list's statement against the index made for it, by SQLite's own plan.

use rusqlite::{Connection, Params};

/// Checks that a list reads its page from an index in order: it neither sorts nor scans rows that it doesn't show, whatever
/// the table's size.
pub(crate) fn check_lists(table: &str, params: impl Params + Clone, lists: &[(&str, &str)]) {
    let mut connection = Connection::open_in_memory().unwrap();
    crate::migrate::migrate(&mut connection).unwrap_or_else(|error| panic!("{error:?}"));
    for (sql, index) in lists {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.query_map(params.clone(), |row| row.get("detail")).unwrap();
        let plan: Vec<String> = steps.map(Result::unwrap).collect();
        let search = format!("SEARCH {table} USING INDEX {index} (");
        let reads_index = plan.iter().any(|step| step.starts_with(&search));
        assert!(reads_index && !plan.iter().any(|step| step.contains("TEMP B-TREE")), "{index}: {plan:#?}");
    }
}
