include: "workflow/Snakefile"


# Snakemake forgets the default target of an included file.
rule default:
    default_target: True
    input:
        rules.all.input,
