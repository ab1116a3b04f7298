# The same kernels on the CPU: checked, and their memory requests counted. Small sizes run whole with
# all checks; of large grids a few blocks stand for all. A fault, an unsupported kernel or a machine
# without a C++ compiler is a row of the table. One job for all, as with the compiler; what was counted
# is kept in results/emulated/cache, which no rule owns.
rule emulate_kernels:
    input:
        kernels=kernel_files({kernel.name for kernel, _ in EMULATED}),
        headers=HEADERS,
        runtime=sorted(
            str(path) for path in (WORKFLOW / "emulator").glob("*/*") if path.is_file()
        ),
        cubins=build_files("cubin", SETTINGS.architectures[:1]),
    output:
        counters="results/emulated/counters.parquet",
    log:
        "results/logs/emulate.log",
    threads: 16
    resources:
        host=1,
    params:
        config=CONFIG_JSON,
    message:
        f"Emulate what is new of {len(EMULATED)} parameter sets"
    shell:
        "ladder emulate --config-json {params.config:q} --builds results/build"
        " --cache results/emulated/cache --workers {threads} --out {output.counters} > {log} 2>&1"


rule emulate:
    input:
        emulated_table(),
