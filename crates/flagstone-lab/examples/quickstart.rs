//! The main job without a command line: `quickstart DIRECTORY [TXNS] [CLIENTS]`.

use std::error::Error;

use flagstone_engine::Options;
use flagstone_lab::quickstart::{QuickstartConfig, quickstart};
use flagstone_nand::Profile;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("name a directory")?;
    let options = [Options::preset("traditional")?, Options::preset("flagstone")?];
    let profile = Profile::named("slc-2k")?;
    let mut config = QuickstartConfig::new(directory.into(), profile, options.to_vec());
    if let Some(txns) = arguments.next() {
        config.txns = txns.parse()?;
    }
    if let Some(clients) = arguments.next() {
        config.clients = clients.parse()?;
    }
    for life in quickstart(&config, &mut |_| ())? {
        let (run, cut) = (&life.run, &life.cut);
        println!("{}: {} acknowledged, {} found", run.config.preset, cut.acknowledged, cut.found);
        println!("  recovery {:?}", cut.recovery);
        println!(
            "  {} programs, {} erases, write amplification {:.1}, {:?} transactions until worn, \
             {:.0} a second",
            run.page_programs + run.partial_programs,
            run.block_erases,
            run.write_amplification,
            run.lifetime_txns,
            run.tps
        );
    }
    Ok(())
}
