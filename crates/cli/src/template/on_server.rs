//! What the commands of `saggar template` do on a server.

use std::path::Path;

use saggar_api::{BuildTemplate, ImportTemplate, UploadTemplate};
use saggar_domain::{Code, Problem};
use saggar_image::{Credentials, Source};

use super::build::BuildArguments;
use super::context::Packing;
use super::{ImportArguments, TemplateCommand, no_name, no_password, read_password};
use crate::remote::{TemplateTask, with_credentials};

pub(super) fn task(command: TemplateCommand) -> Result<TemplateTask, Problem> {
    match command {
        TemplateCommand::List => Ok(TemplateTask::List),
        TemplateCommand::Show { name } => Ok(TemplateTask::Show(name)),
        TemplateCommand::Rm { name } => Ok(TemplateTask::Rm(name)),
        TemplateCommand::Tag { from, name } => Ok(TemplateTask::Tag { from, name }),
        TemplateCommand::Import(arguments) => import(*arguments),
        TemplateCommand::Build(arguments) => build(*arguments),
        TemplateCommand::Check | TemplateCommand::Gc { .. } => Err(Problem::new(
            Code::InvalidValue,
            "a server's templates are checked and collected on its own host",
            "run the command there, with --data-dir",
        )),
    }
}

fn build(arguments: BuildArguments) -> Result<TemplateTask, Problem> {
    if let Some(flag) = arguments.setting_of_the_server() {
        return Err(Problem::new(
            Code::InvalidValue,
            format!("{flag} is a setting of the server's builds"),
            "leave it out; the server's operator sets it for all builds",
        ));
    }
    let file = arguments.file.as_deref().unwrap_or(Path::new("Dockerfile"));
    let packing = match &arguments.file {
        None => Packing::new(arguments.context, None),
        Some(file) => Packing::new(arguments.context, Some((file, super::build::text_of(file)?))),
    };
    let query = BuildTemplate {
        name: arguments.name,
        file: Some(packing.dockerfile(file)),
        target: arguments.target,
        arg: arguments.build_args.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        no_cache: arguments.no_cache,
    };
    Ok(TemplateTask::Build { packing, query })
}

fn import(arguments: ImportArguments) -> Result<TemplateTask, Problem> {
    let server_decides = arguments.plain_http || arguments.max_size.is_some() || arguments.max_entries.is_some();
    if server_decides {
        return Err(Problem::new(
            Code::InvalidValue,
            "--plain-http, --max-size and --max-entries are settings of the server",
            "leave them out",
        ));
    }
    let name = arguments.name.or_else(|| arguments.source.default_name());
    match arguments.source {
        Source::Registry(reference) => {
            let source = format!("docker://{reference}");
            let import = ImportTemplate { source, name, username: None, password: None, secret: None };
            Ok(TemplateTask::Import(match (arguments.username, arguments.secret) {
                (Some(username), Some(secret)) => {
                    ImportTemplate { username: Some(username), secret: Some(secret), ..import }
                }
                (Some(username), None) if arguments.password_stdin => {
                    let Credentials { username, password, .. } = read_password(username)?;
                    with_credentials(import, username, &password)
                }
                (Some(_), None) => return Err(no_password()),
                (None, _) => import,
            }))
        }
        Source::Files(archive) => {
            let name = name.ok_or_else(no_name)?;
            Ok(TemplateTask::Upload { archive, query: UploadTemplate { name, image: arguments.image } })
        }
    }
}
