rule plan_points:
    output:
        plan="results/{device}/plan.parquet",
    log:
        "results/logs/plan/{device}.log",
    params:
        config=CONFIG_JSON,
    message:
        "Plan the points of {wildcards.device}"
    shell:
        "ladder plan --config-json {params.config:q} --out {output.plan} > {log} 2>&1"


# A compiler's refusal is a row of the record, with an empty CUBIN: one bad candidate must not end
# a sweep.
rule compile_kernel:
    input:
        source="kernels/{kernel}.cu",
        manifest="kernels/{kernel}.yaml",
        headers=HEADERS,
    output:
        record="results/build/{architecture}/{kernel}/{params}.parquet",
        cubin="results/build/{architecture}/{kernel}/{params}.cubin",
    log:
        "results/logs/compile/{architecture}/{kernel}/{params}.log",
    threads: 1
    resources:
        host=1,
    message:
        "Compile {wildcards.kernel} {wildcards.params} for {wildcards.architecture}"
    shell:
        "ladder compile {wildcards.kernel} --params {wildcards.params:q}"
        " --architecture {wildcards.architecture} --builds results/build > {log} 2>&1"
