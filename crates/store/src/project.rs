//! Projects own sandboxes and keys. Projects can't see each other's objects.

use rusqlite::{Connection, Row};
use saggar_domain::{ProjectId, ProjectName, Timestamp};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// The name of the project that always exists.
const DEFAULT_NAME: &str = "default";
pub const PROJECTS_MAX: u32 = 1_000;

const INSERT: &str = "INSERT INTO project (id, name, created_at) VALUES (?1, ?2, ?3)";
const GET: &str = "SELECT id, name, created_at FROM project WHERE id = ?1";
const GET_BY_NAME: &str = "SELECT id, name, created_at FROM project WHERE name = ?1";
const LIST: &str = "SELECT id, name, created_at FROM project ORDER BY created_at, id LIMIT ?1";

const COUNT: &str = "SELECT count(*) AS projects FROM project";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    pub id: ProjectId,
    /// Unique.
    pub name: ProjectName,
    pub created_at: Timestamp,
}

impl Store {
    /// [`Error::Taken`] if the name exists.
    pub async fn create_project(&self, project: Project) -> Result<(), Error> {
        self.write(Durability::Power, move |connection| insert(connection, &project)).await
    }

    /// The project `default`; created with this id if missing.
    pub async fn default_project(&self, id: ProjectId, now: Timestamp) -> Result<Project, Error> {
        let name = ProjectName::parse(DEFAULT_NAME).expect("it is a short word");
        if let Some(project) = self.project_by_name(name.clone()).await? {
            return Ok(project);
        }
        let new = Project { id, name, created_at: now };
        let work = move |connection: &Connection| {
            if let Some(project) = by_name(connection, &new.name)? {
                return Ok(project);
            }
            insert(connection, &new)?;
            Ok(new.clone())
        };
        self.write(Durability::Power, work).await
    }

    pub async fn project(&self, id: ProjectId) -> Result<Option<Project>, Error> {
        self.read(move |connection| column::one(connection, GET, [id.as_str()], read)).await
    }

    pub async fn project_by_name(&self, name: ProjectName) -> Result<Option<Project>, Error> {
        self.read(move |connection| by_name(connection, &name)).await
    }

    /// Oldest first.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        self.read(|connection| column::all(connection, LIST, [PROJECTS_MAX], read)).await
    }
}

fn insert(connection: &Connection, project: &Project) -> Result<(), Error> {
    let projects = column::one(connection, COUNT, [], |row| column::number(row, "projects"))?;
    if projects.is_some_and(|projects| projects >= u64::from(PROJECTS_MAX)) {
        return Err(Error::TooMany { what: "projects" });
    }
    let params = (project.id.as_str(), project.name.as_str(), column::millis(project.created_at));
    column::execute(connection, INSERT, params).map_err(|error| error.naming("a project of that name"))?;
    Ok(())
}

fn by_name(connection: &Connection, name: &ProjectName) -> Result<Option<Project>, Error> {
    column::one(connection, GET_BY_NAME, [name.as_str()], read)
}

fn read(row: &Row<'_>) -> Result<Project, Error> {
    Ok(Project {
        id: column::parsed(row, "id", ProjectId::parse)?,
        name: column::parsed(row, "name", ProjectName::parse)?,
        created_at: column::time(row, "created_at")?,
    })
}
